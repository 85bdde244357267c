"""A pack's own serializers for comfy-env, of which there are none."""

"""comfy.model_prefetch of the new generation: captures, and what drops them."""

import torch

import comfy.model_management

GRAPHS = []


def capture(core):
    graph = torch.cuda.CUDAGraph()
    comfy.model_management.soft_empty_cache()
    with torch.cuda.graph(graph):
        core()
    GRAPHS.append(graph)


def cleanup_prefetch_queues():
    GRAPHS.clear()

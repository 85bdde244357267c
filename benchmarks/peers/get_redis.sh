#!/usr/bin/env bash
# Puts Debian's redis-server and the two libraries it needs under DIRECTORY, without installing anything. Where there is
# a redis-server already, or no apt, it does nothing: then the benchmark's row says so.
set -euo pipefail
mkdir -p "$1"
cd "$1"
if command -v redis-server >/dev/null || [ -e usr/bin/redis-server ]; then exit 0; fi
if ! command -v apt-get >/dev/null; then
  echo "no redis-server, and no apt-get to fetch it" >&2
  exit 0
fi
if ! apt-get download -qq redis-server redis-tools liblzf1 libjemalloc2 2>/dev/null; then
  echo "redis-server could not be fetched (apt-get update, as root, may help)" >&2
  exit 0
fi
for package in ./*.deb; do dpkg -x "$package" .; done
rm -f ./*.deb

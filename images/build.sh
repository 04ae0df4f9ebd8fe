#!/usr/bin/env bash
# Builds the images, and pushes them where PUSH says: images/build.sh [NAME...]
#
# PUSH             registry and path, such as ghcr.io/me/kvasir; without it nothing is pushed
# TAG              default: the version in api/kvasir/__init__.py
# SBOM             directory for a bill of materials of each (CycloneDX); needs `make install`
# BASE_IMAGE       what all of them stand on (default: the pinned one in each file)
# TORCH_INDEX_URL  for engine-cpu: an index with CPU-only wheels
set -euo pipefail
cd "$(dirname "$0")/.."

names=("$@")
[ $# -gt 0 ] || names=(router operator downloader engine-sim engine-cpu engine-cuda)
for name in "${names[@]}"; do
  [ -f "images/$name.Dockerfile" ] || { echo "images: there is no image $name" >&2; exit 2; }
done
builder=
for candidate in docker buildah podman; do
  if command -v "$candidate" > /dev/null; then builder=$candidate; break; fi
done
[ -n "$builder" ] || { echo "images: install docker, buildah or podman" >&2; exit 2; }

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' api/kvasir/__init__.py)
revision=$(git rev-parse HEAD 2> /dev/null || echo unknown)
created=$(git log -1 --format=%cI 2> /dev/null || echo unknown)
prefix=${PUSH:-localhost/kvasir}
arguments=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision" --build-arg "CREATED=$created")
[ -z "${BASE_IMAGE:-}" ] || arguments+=(--build-arg "BASE_IMAGE=$BASE_IMAGE")
# What is in image $2, as $SBOM/$1.cdx.json.
bill() {
  local archive
  archive=$(mktemp -d)
  case $builder in
    buildah) buildah push --quiet "$2" "docker-archive:$archive/image.tar" ;;
    *) "$builder" save -o "$archive/image.tar" "$2" ;;
  esac
  mkdir -p "$SBOM"
  .venv/bin/python images/sbom.py "$1" "$archive/image.tar" > "$SBOM/$1.cdx.json"
  rm -rf "$archive"
}
for name in "${names[@]}"; do
  image=$prefix/$name:${TAG:-$version}
  extra=()
  if [ "$name" = engine-cpu ] && [ -n "${TORCH_INDEX_URL:-}" ]; then
    extra=(--build-arg "TORCH_INDEX_URL=$TORCH_INDEX_URL")
  fi
  "$builder" build "${arguments[@]}" "${extra[@]}" -f "images/$name.Dockerfile" -t "$image" .
  [ -z "${SBOM:-}" ] || bill "$name" "$image"
  [ -z "${PUSH:-}" ] || "$builder" push "$image"
  echo "$image"
done

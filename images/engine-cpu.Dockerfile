# The engine on a CPU: `kvasir serve`. PyPI's torch brings its CUDA libraries, 3 GB of them; an index
# with CPU-only wheels leaves them out:
#
#   docker build --build-arg TORCH_INDEX_URL=URL -f images/engine-cpu.Dockerfile -t kvasir/engine-cpu .
ARG BASE_IMAGE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d

FROM ${BASE_IMAGE} AS build
ARG UV_VERSION=0.13.9
ENV PIP_BREAK_SYSTEM_PACKAGES=1 \
    PIP_ROOT_USER_ACTION=ignore \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_NO_CACHE=1 \
    UV_SYSTEM_CERTS=1 \
    UV_PYTHON_DOWNLOADS=never
RUN command -v pip3 > /dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip; }
RUN pip3 install --quiet --no-cache-dir "uv==${UV_VERSION}" && uv venv --quiet --python python3 /opt/kvasir
ENV VIRTUAL_ENV=/opt/kvasir
COPY locks/engine.txt locks/other_torch.awk /src/locks/
ARG TORCH_INDEX_URL=
RUN if [ -z "${TORCH_INDEX_URL}" ]; then \
      uv pip sync --quiet /src/locks/engine.txt; \
    else \
      awk -f /src/locks/other_torch.awk /src/locks/engine.txt > /src/requirements.txt && \
      uv pip install --quiet --index "${TORCH_INDEX_URL}" --index-strategy unsafe-best-match -r /src/requirements.txt; \
    fi
# The Kubernetes client is for operator, router and `kvasir status`.
RUN uv pip uninstall --quiet kubernetes
# After the dependencies, which change less often.
COPY . /src
RUN uv pip install --quiet --no-deps /src && rm -f /opt/kvasir/.lock

FROM ${BASE_IMAGE}
ARG VERSION=dev
ARG REVISION=unknown
ARG CREATED=unknown
ARG BASE_IMAGE
LABEL org.opencontainers.image.title="kvasir-engine-cpu" \
      org.opencontainers.image.description="Inference engine for large language models, on CPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
COPY --from=build /opt/kvasir /opt/kvasir
# Everything belongs to root: what runs here writes to mounted volumes alone.
ENV PATH=/opt/kvasir/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
EXPOSE 8000 8001 5557 5558
ENTRYPOINT ["kvasir"]

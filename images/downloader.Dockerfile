# The model downloader: `kvasir download`, without an engine.
#
#   docker build -f images/downloader.Dockerfile -t kvasir/downloader .
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
COPY locks/download.txt /src/locks/download.txt
# The Kubernetes client, and what it needs, is for operator, router and `kvasir status`.
RUN uv pip sync --quiet /src/locks/download.txt && \
    uv pip uninstall --quiet kubernetes aiohttp oauthlib requests-oauthlib websocket-client durationpy
# After the dependencies, which change less often.
COPY . /src
# One wheel carries all parts; only this one's is kept, no package's own tests, and of AWS's services
# those that reading from S3 takes.
RUN uv pip install --quiet --no-deps /src && \
    cd /opt/kvasir/lib/python3*/site-packages && \
    rm -rf kvasir_engine kvasir_router kvasir_operator && \
    find . -type d -name tests -prune -exec rm -rf {} + && \
    find botocore/data -mindepth 1 -maxdepth 1 -type d ! -name s3 ! -name sts ! -name 'sso*' -exec rm -rf {} + && \
    rm -f /opt/kvasir/.lock

FROM ${BASE_IMAGE}
ARG VERSION=dev
ARG REVISION=unknown
ARG CREATED=unknown
ARG BASE_IMAGE
LABEL org.opencontainers.image.title="kvasir-downloader" \
      org.opencontainers.image.description="Model downloader of Kvasir" \
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
EXPOSE 8000
ENTRYPOINT ["kvasir"]

# The optional wheels in Rust for processes (native/README.md), as an image that the builds of the others take them from:
#   docker build -f deploy/docker/native.Dockerfile -t duetime/native .
#   NATIVE_IMAGE=duetime/native docker compose build
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG RUST_IMAGE=rust:1.95-slim-bookworm

FROM ${RUST_IMAGE} AS rust

FROM ${PYTHON_IMAGE} AS build
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null \
    && rm -rf /var/lib/apt/lists/*
COPY --from=rust /usr/local/rustup /usr/local/rustup
COPY --from=rust /usr/local/cargo /usr/local/cargo
# Cargo's package has protoc: duetime-raft runs it by the build's Python.
ENV PATH=/opt/build/bin:/usr/local/cargo/bin:$PATH \
    RUSTUP_HOME=/usr/local/rustup \
    CARGO_HOME=/usr/local/cargo
WORKDIR /build
COPY deploy/docker/requirements-native.txt ./
RUN python -m venv /opt/build \
    && pip install --quiet --no-cache-dir --only-binary :all: --require-hashes --requirement requirements-native.txt
COPY native native
# Crates in the versions and with the hashes of Cargo.lock. Each wheel lists its crates and their licences.
RUN pip install --quiet --no-cache-dir --no-compile --no-deps --no-build-isolation --prefix /opt/native \
       ./native/front ./native/raft \
    && test "$(find /opt/native -path '*.dist-info/sboms/*.json' | wc -l)" = 2 \
    && python -m compileall -q --invalidation-mode unchecked-hash /opt/native/lib

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/native /opt/native
LABEL org.opencontainers.image.title="duetime/native" \
      org.opencontainers.image.description="DueTime: optional wheels in Rust, for building the other images" \
      org.opencontainers.image.version="0.2.0" \
      org.opencontainers.image.licenses="Apache-2.0"

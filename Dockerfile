# The images of DueTime, one target each: docker build --target store .
# Targets: gateway, store, scheduler, retry, webhooks, console (servers) and spark (the data pipeline).
# A builder without BuildKit runs every stage above its target, so the stages of `spark` alone are at the end.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
# An image of deploy/docker/native.Dockerfile: its wheels become part of the servers. Without it there are none.
ARG NATIVE_IMAGE=${PYTHON_IMAGE}

FROM ${NATIVE_IMAGE} AS native
RUN install -d /opt/native

FROM ${PYTHON_IMAGE} AS packages
WORKDIR /build
RUN python -m venv --without-pip /opt/duetime
COPY deploy/docker/requirements-servers.txt ./
# Exactly the lock file's versions and files as of the lock (`make requirements`); as
# wheels only: nothing is built here. Bytecode is checked by content, not by time.
RUN python -m pip --python /opt/duetime/bin/python install --quiet --no-cache-dir --no-compile \
       --only-binary :all: --require-hashes --requirement requirements-servers.txt \
    && find /opt/duetime/lib -type d -name tests -prune -exec rm -r {} + \
    && /opt/duetime/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/duetime/lib

FROM ${PYTHON_IMAGE} AS compiler
# Some base images lack Python's headers.
RUN apt-get update -qq \
    && headers=$(python -c 'import sysconfig; print(sysconfig.get_path("include"))') \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev \
       $(test -e "$headers/Python.h" || echo python3-dev) >/dev/null \
    && rm -rf /var/lib/apt/lists/*

FROM compiler AS wheel
WORKDIR /build
COPY deploy/docker/requirements-build.txt ./
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --quiet --no-cache-dir --require-hashes --requirement requirements-build.txt
COPY pyproject.toml ./
RUN touch README.md
COPY format format
COPY core core
COPY shard shard
COPY sdk sdk
COPY services services
COPY spark spark
COPY console console
# Documents shown by the console's pages.
COPY docs/http.md docs/protocol.md docs/runbooks.md docs/
# A twin that does not compile fails this build; elsewhere it would only be slow.
RUN /opt/build/bin/pip wheel --quiet --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist ./sdk . \
    && test "$(find core format services spark -name '_*.pyx' | wc -l)" = "$(for wheel in dist/*.whl; do python -m zipfile --list "$wheel"; done | grep -c '\.so ')"
COPY --from=packages /opt/duetime /opt/duetime
RUN /opt/build/bin/pip --python /opt/duetime/bin/python install --quiet --no-cache-dir --no-compile --no-deps \
       --prefix /opt/package dist/*.whl \
    && python -m compileall -q --invalidation-mode unchecked-hash /opt/package/lib

FROM ${PYTHON_IMAGE} AS process
# A volume takes the owner of the directory that it is mounted at: deploy/compose/secure.yml has one for each role.
RUN echo 'duetime:x:10001:10001:DueTime:/tmp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'duetime:x:10001:' >> /etc/group \
    && install -d -o 10001 -g 10001 /var/lib/duetime \
    && for name in tls certs certs/gateway certs/store certs/scheduler certs/retry certs/console certs/webhooks certs/spark certs/public; do \
       install -d -o 10001 -g 10001 -m 0700 "/etc/duetime/$name"; done
ENV PATH=/opt/duetime/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.version="0.2.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# Root's file system may be read-only; /tmp must be writable. The user is set by the targets: later stages install.
WORKDIR /tmp
STOPSIGNAL SIGTERM

FROM process AS server
COPY --from=packages /opt/duetime /opt/duetime
COPY --from=wheel /opt/package /opt/duetime
COPY --from=native /opt/native /opt/duetime
ENV DUETIME_LOG_FORMAT=json
USER 10001:10001

FROM server AS gateway
ENV DUETIME_GATEWAY_HOST=0.0.0.0 \
    DUETIME_GATEWAY_PORT=9800 \
    DUETIME_GATEWAY_PROBE_PORT=9820 \
    DUETIME_GATEWAY_METRICS_PORT=9810
LABEL org.opencontainers.image.title="duetime/gateway" \
      org.opencontainers.image.description="DueTime: gateway, the one address that clients know"
EXPOSE 9800 9810 9820
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-P", "-m", "duetime_core.health", "127.0.0.1:9820"]
ENTRYPOINT ["python", "-P", "-m", "duetime_gateway"]

FROM server AS store
ENV DUETIME_STORE_HOST=0.0.0.0 \
    DUETIME_STORE_PORT=9801 \
    DUETIME_STORE_PROBE_PORT=9821 \
    DUETIME_STORE_METRICS_PORT=9811 \
    DUETIME_STORE_DATA_DIR=/var/lib/duetime/store
LABEL org.opencontainers.image.title="duetime/store" \
      org.opencontainers.image.description="DueTime: store, one shard"
EXPOSE 9801 9811 9821
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-P", "-m", "duetime_core.health", "127.0.0.1:9821"]
ENTRYPOINT ["python", "-P", "-m", "duetime_store"]

FROM server AS scheduler
ENV DUETIME_SCHEDULER_HOST=0.0.0.0 \
    DUETIME_SCHEDULER_PORT=9803 \
    DUETIME_SCHEDULER_PROBE_PORT=9823 \
    DUETIME_SCHEDULER_METRICS_PORT=9813
LABEL org.opencontainers.image.title="duetime/scheduler" \
      org.opencontainers.image.description="DueTime: scheduler, which restores what is due"
EXPOSE 9803 9813 9823
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-P", "-m", "duetime_core.health", "127.0.0.1:9823"]
ENTRYPOINT ["python", "-P", "-m", "duetime_scheduler"]

FROM server AS retry
ENV DUETIME_RETRY_HOST=0.0.0.0 \
    DUETIME_RETRY_PORT=9804 \
    DUETIME_RETRY_PROBE_PORT=9824 \
    DUETIME_RETRY_METRICS_PORT=9814
LABEL org.opencontainers.image.title="duetime/retry" \
      org.opencontainers.image.description="DueTime: retry service"
EXPOSE 9804 9814 9824
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-P", "-m", "duetime_core.health", "127.0.0.1:9824"]
ENTRYPOINT ["python", "-P", "-m", "duetime_retry"]

FROM server AS webhooks
ENV DUETIME_WEBHOOKS_HOST=0.0.0.0 \
    DUETIME_WEBHOOKS_PORT=9805 \
    DUETIME_WEBHOOKS_PROBE_PORT=9825 \
    DUETIME_WEBHOOKS_METRICS_PORT=9816
LABEL org.opencontainers.image.title="duetime/webhooks" \
      org.opencontainers.image.description="DueTime: webhook worker, which posts messages to URLs"
EXPOSE 9805 9816 9825
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-P", "-m", "duetime_core.health", "127.0.0.1:9825"]
ENTRYPOINT ["python", "-P", "-m", "duetime_webhooks"]

FROM server AS console
# A generated secret of sessions is stored below HOME: it ends with the container.
ENV DUETIME_CONSOLE_HOST=0.0.0.0 \
    DUETIME_CONSOLE_PORT=9880 \
    DUETIME_CONSOLE_METRICS_PORT=9815 \
    HOME=/tmp
LABEL org.opencontainers.image.title="duetime/console" \
      org.opencontainers.image.description="DueTime: console, the cluster in a browser"
EXPOSE 9880 9815
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-P", "-m", "duetime_console.health"]
ENTRYPOINT ["python", "-P", "-m", "duetime_console"]

FROM packages AS pipeline
COPY deploy/docker/requirements-spark.txt ./
RUN python -m pip --python /opt/duetime/bin/python install --quiet --no-cache-dir --no-compile \
       --require-hashes --requirement requirements-spark.txt \
    && find /opt/duetime/lib -type d -name tests -prune -exec rm -r {} + \
    && /opt/duetime/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/duetime/lib

# PySpark and the Java that it runs on.
FROM process AS spark
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/debconf /var/log/* \
    && install -d -o 10001 -g 10001 /var/lib/duetime/reports
COPY --from=pipeline /opt/duetime /opt/duetime
COPY --from=wheel /opt/package /opt/duetime
# Spark's start scripts read HOME; they and Java write below /tmp only, which must be on a disk: shuffles go there.
ENV HOME=/tmp \
    SPARK_LOCAL_DIRS=/tmp/spark
LABEL org.opencontainers.image.title="duetime/spark" \
      org.opencontainers.image.description="DueTime: the data pipeline"
USER 10001:10001
ENTRYPOINT ["python", "-P", "-m", "duetime_spark"]

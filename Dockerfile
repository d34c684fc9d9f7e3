# A slim image that runs one role; `magnetar standalone` unless told otherwise.
FROM python:3.11-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY platform platform
COPY functions functions
COPY connectors connectors
COPY runtime runtime
RUN python -m venv /opt/magnetar \
 && /opt/magnetar/bin/pip install --no-cache-dir --disable-pip-version-check ".[zookeeper,sql]"

FROM python:3.11-slim
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/magnetar magnetar
COPY --from=build /opt/magnetar /opt/magnetar
COPY config /etc/magnetar
ENV PATH=/opt/magnetar/bin:$PATH PYTHONUNBUFFERED=1
USER magnetar
WORKDIR /var/lib/magnetar
VOLUME /var/lib/magnetar
EXPOSE 6650 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s \
  CMD ["magnetar", "brokers", "healthcheck", "--admin-url", "http://127.0.0.1:8080"]
# Clients are told to come to localhost, where `docker run -p 6650:6650 -p 8080:8080` lets them in; in a network of
# containers say --advertised-host with the container's name.
ENTRYPOINT ["magnetar"]
CMD ["standalone", "--data", "/var/lib/magnetar/data", "--host", "0.0.0.0", \
     "--advertised-host", "localhost", "--config", "/etc/magnetar/standalone.yaml"]

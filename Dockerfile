# syntax=docker/dockerfile:1
# Tokenwire on vLLM. The last stage, for NVIDIA GPUs, is the default; `--target cpu` builds the one without a GPU.
# The vLLM version is that of pyproject.toml (a test compares them): server/engine/vllm.py is written against it.
ARG VLLM_VERSION=0.32.0

# ---- the page's libraries --------------------------------------------------------------------------------------
FROM node:22-slim AS libraries
WORKDIR /libraries
# As in scripts/setup.sh (a test compares them).
RUN npm install --no-audit --no-fund marked@18.2.1 dompurify@3.5.0 @highlightjs/cdn-assets@11.12.0

# ---- CPU -------------------------------------------------------------------------------------------------------
FROM python:3.11-slim AS cpu
# libnuma1: vLLM's CPU kernels link against it.
RUN apt-get update && apt-get install -y --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/*
WORKDIR /app
# The dependencies first, on two empty packages: a change of the source does not install vLLM again.
COPY pyproject.toml README.md LICENSE ./
# uv, since it knows where PyTorch keeps its CPU build.
RUN mkdir protocol server && touch protocol/__init__.py server/__init__.py \
    && pip install --no-cache-dir 'uv>=0.9,<1' \
    && uv pip install --system --no-cache --torch-backend=cpu --editable '.[cpu]'
COPY protocol protocol
COPY server server
COPY web web
COPY --from=libraries /libraries/node_modules .tools/node_modules
RUN useradd --create-home --uid 10001 tokenwire && mkdir /data /models && chown tokenwire: /data /models
USER tokenwire
# /data: conversations, where no Redis URL is given. /models: converted and downloaded models, compile caches.
ENV TOKENWIRE_HOST=0.0.0.0 TOKENWIRE_PORT=8000 TOKENWIRE_DATA_DIR=/data XDG_CACHE_HOME=/models \
    VLLM_NO_USAGE_STATS=1 PYTHONUNBUFFERED=1
VOLUME ["/data", "/models"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 \
    CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["tokenwire", "serve"]

# ---- GPU -------------------------------------------------------------------------------------------------------
FROM vllm/vllm-openai:v${VLLM_VERSION} AS gpu
WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
# The image holds this very vLLM: the extra `gpu` finds it installed and only adds the small packages beside it.
RUN mkdir protocol server && touch protocol/__init__.py server/__init__.py \
    && PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir --editable '.[gpu]'
COPY protocol protocol
COPY server server
COPY web web
COPY --from=libraries /libraries/node_modules .tools/node_modules
RUN useradd --create-home --uid 10001 tokenwire && mkdir -p /data /models && chown tokenwire: /data /models
USER tokenwire
ENV TOKENWIRE_HOST=0.0.0.0 TOKENWIRE_PORT=8000 TOKENWIRE_DATA_DIR=/data XDG_CACHE_HOME=/models \
    VLLM_NO_USAGE_STATS=1 PYTHONUNBUFFERED=1
VOLUME ["/data", "/models"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 \
    CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["tokenwire", "serve"]

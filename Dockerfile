# tcbench for a machine with an NVIDIA GPU; docs/container.md has the commands. The driver is the host's, brought in by
# NVIDIA's Container Toolkit; all else of CUDA comes from PyPI, so that no CUDA image is needed.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
ARG UV=0.13.9
# cuda13, cuda12 or volta: `tcbench list --gpus` says which suits a GPU.
ARG EXTRA=cuda13
ENV UV_PROJECT_ENVIRONMENT=/opt/tcbench \
    UV_PYTHON_DOWNLOADS=never \
    UV_NO_CACHE=1 \
    UV_COMPILE_BYTECODE=1
RUN pip install --no-cache-dir "uv==${UV}"
WORKDIR /src
# What tcbench needs is gigabytes and changes seldom: a layer of its own.
COPY pyproject.toml README.md LICENSE ./
COPY tcbench/__init__.py tcbench/
RUN uv sync --no-default-groups --no-install-project --extra ladder --extra "${EXTRA}"
COPY scenarios scenarios
COPY tcbench tcbench
RUN uv sync --no-default-groups --no-editable --extra ladder --extra "${EXTRA}"

FROM python:${PYTHON}-slim-bookworm
# GCC's OpenMP library is oneDNN's; its version is Debian's to choose.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends -y libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home tcbench \
    # Any user may write there, since `docker run --user` may name any.
    && install -d -m 1777 /cache /bench
COPY --from=build /opt/tcbench /opt/tcbench
# Images, cuDNN plans, compiled kernels and fonts, kept from one container to the next.
ENV PATH=/opt/tcbench/bin:$PATH \
    TCBENCH_CACHE=/cache/tcbench \
    CUPY_CACHE_DIR=/cache/cupy \
    MPLCONFIGDIR=/cache/matplotlib \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME ["/cache"]
WORKDIR /bench
USER 1000
# Seldom, since it takes a processor for seconds; runs that measure turn it off.
HEALTHCHECK --interval=1h --timeout=2m --retries=1 CMD ["tcbench", "doctor"]
ENTRYPOINT ["tcbench"]
CMD ["doctor"]

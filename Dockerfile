# Two variants: for CPUs (the default), and for GPUs with --build-arg VARIANT=cuda.
#
#   docker build -t abag --build-arg TORCH_INDEX=URL .    # of PyTorch's index for CPUs; may be left out
#   docker run --rm -v "$PWD:/data" -v abag-cache:/cache abag embed pairs.csv --store store
#
#   docker build -t abag:cuda --build-arg VARIANT=cuda .
#   docker run --rm --gpus all -v "$PWD:/data" -v abag-cache:/cache abag:cuda doctor
#
# Add --user "$(id -u):$(id -g)" to own the files that it writes.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS wheel
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG VARIANT=cpu
# Triton builds the launchers of its kernels with a C compiler; which version does not matter
# hadolint ignore=DL3008
RUN if [ "$VARIANT" = cuda ]; then \
        apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/*; \
    fi
# builds of torch without CUDA, which are 4 GB smaller, come from PyTorch's own package index
ARG TORCH_INDEX=""
# home and user name of any --user: downloaded weights and compiled kernels are kept in /cache
ENV HOME=/cache USER=abag
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    PIP_EXTRA_INDEX_URL=${TORCH_INDEX} pip install --no-cache-dir -c /constraints.txt /wheels/*.whl \
    && mkdir -m 1777 /cache /data
USER 1000
WORKDIR /data
VOLUME /cache
ENTRYPOINT ["abag"]
CMD ["--help"]

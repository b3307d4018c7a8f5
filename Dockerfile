# An image for somebody who audits a recording of somebody else, on the CPU and without a network (docs/install.md).
FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
COPY pyproject.toml MANIFEST.in README.md CHANGELOG.md LICENSE constraints.txt ./
COPY src ./src
RUN python -m pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c constraints.txt .
RUN fedglass --version && fedglass list attacks -q
WORKDIR /audit
ENV HOME=/tmp
USER 1000:1000
ENTRYPOINT ["fedglass"]

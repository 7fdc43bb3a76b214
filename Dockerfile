# The image of the operator (cmd/admitkit): one static binary, no shell, not root.
# `make image` makes the same without a container engine.
#
#	docker build --build-arg VERSION=$(git describe --tags --always) .
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# .git is not part of what Docker copies, so Go cannot tell the version.
ARG VERSION=
RUN CGO_ENABLED=0 go build -trimpath -ldflags="-s -w -X github.com/admitkit/admitkit/internal/buildinfo.version=${VERSION}" -o /admitkit ./cmd/admitkit

FROM scratch
COPY --from=build --chmod=0555 /admitkit /admitkit
USER 65532:65532
ENTRYPOINT ["/admitkit"]

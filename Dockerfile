# The images of the operator (operator/cmd/admitkit), of the one for controllers from hooks (operator/cmd/hooks),
# of the one for sandboxed runs (operator/cmd/sandbox), and of the recorder of sessions (operator/cmd/recorder): one static binary each, no shell, not root.
# `make image` makes the same without a container engine.
#
#	docker build --build-arg VERSION=$(git describe --tags --always) .
#	docker build --build-arg VERSION=$(git describe --tags --always) --target hooks .
#	docker build --build-arg VERSION=$(git describe --tags --always) --target sandbox .
#	docker build --build-arg VERSION=$(git describe --tags --always) --target recorder .
FROM golang:1.26 AS source
WORKDIR /src
COPY go.mod go.sum ./
COPY operator/go.mod operator/go.sum operator/go.work operator/go.work.sum ./operator/
RUN go -C operator mod download
COPY . .
WORKDIR /src/operator
# .git is not part of what Docker copies, so Go cannot tell the version.
ARG VERSION=
ENV CGO_ENABLED=0 LDFLAGS="-s -w -X github.com/admitkit/admitkit/manager/buildinfo.version=${VERSION}"

FROM source AS build-hooks
RUN go build -trimpath -ldflags="${LDFLAGS}" -o /hooks ./cmd/hooks

FROM source AS build-sandbox
RUN go build -trimpath -ldflags="${LDFLAGS}" -o /sandbox ./cmd/sandbox

FROM source AS build-recorder
RUN go build -trimpath -ldflags="${LDFLAGS}" -o /recorder ./cmd/recorder

FROM source AS build-admitkit
RUN go build -trimpath -ldflags="${LDFLAGS}" -o /admitkit ./cmd/admitkit

FROM scratch AS hooks
COPY --from=build-hooks --chmod=0555 /hooks /hooks
USER 65532:65532
ENTRYPOINT ["/hooks"]

FROM scratch AS sandbox
COPY --from=build-sandbox --chmod=0555 /sandbox /sandbox
USER 65532:65532
ENTRYPOINT ["/sandbox"]

FROM scratch AS recorder
COPY --from=build-recorder --chmod=0555 /recorder /recorder
USER 65532:65532
ENTRYPOINT ["/recorder"]

# The last one is what docker build makes without --target.
FROM scratch AS admitkit
COPY --from=build-admitkit --chmod=0555 /admitkit /admitkit
USER 65532:65532
ENTRYPOINT ["/admitkit"]

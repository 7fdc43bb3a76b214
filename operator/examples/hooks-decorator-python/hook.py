#!/usr/bin/env python3
"""The hook of a DecoratorController: a Service for each Pod of a StatefulSet.

The operator for hooks sends a StatefulSet with the annotation example.com/service-per-pod,
whose value is a port, and the Services that it has; the hook answers with those that it
should have. It needs nothing but Python's standard library.
"""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANNOTATION = "example.com/service-per-pod"
MAX_BODY = 16 << 20


def sync(request):
    """Return what the object should have. It has no side effects."""
    stateful_set, attached = request["object"], request["attachments"]["Service.v1"]
    if request["finalizing"]:  # it is being deleted, or the annotation is gone
        return {"annotations": {"example.com/services": None}, "attachments": [], "finalized": not attached}
    metadata, spec = stateful_set["metadata"], stateful_set["spec"]
    port = int(metadata["annotations"][ANNOTATION])
    if not 0 < port < 65536:
        raise ValueError(f"the annotation {ANNOTATION} is not a port: {port}")
    first = spec.get("ordinals", {}).get("start", 0)
    names = [f"{metadata['name']}-{first + n}" for n in range(spec.get("replicas", 1))]
    return {
        # Whoever looks at the StatefulSet sees how many Services there are.
        "annotations": {"example.com/services": str(len(attached))},
        "attachments": [service(name, port) for name in names],
    }


def service(pod, port):
    """Return a Service for one Pod, which Kubernetes labels with its name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": pod},
        "spec": {
            "selector": {"statefulset.kubernetes.io/pod-name": pod},
            "ports": [{"name": "main", "port": port, "targetPort": port, "protocol": "TCP"}],
        },
    }


class Handler(BaseHTTPRequestHandler):
    """Answers POST requests with what sync returns, or with 500, which changes nothing."""

    protocol_version = "HTTP/1.1"  # the operator keeps its connections

    def do_POST(self):
        length = int(self.headers.get("Content-Length", -1))
        if not 0 <= length <= MAX_BODY:
            self.close_connection = True
            self.answer(413, {"error": f"want a body of at most {MAX_BODY} bytes"})
            return
        try:
            self.answer(200, sync(json.loads(self.rfile.read(length))))
        except (KeyError, TypeError, ValueError) as problem:
            self.answer(500, {"error": f"{type(problem).__name__}: {problem}"})

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main():
    host, _, port = os.environ.get("ADDRESS", ":8080").rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), Handler)
    server.daemon_threads = True
    # The first process of a container ignores signals that it has no handler for.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.serve_forever()


if __name__ == "__main__":
    main()

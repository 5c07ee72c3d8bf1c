"""Program of a cold kernel: `cold CHANNEL SHELL IOPUB STDIN CONTROL HB`, each a descriptor number."""

import os
import socket
import sys

from sandbox.inside import limits
from sandbox.inside.channel import Channel
from sandbox.inside.kernel import AdoptingKernelApp, announce, configuration, install_host_call, no_debugger


def main() -> None:
    own, *adopted = (int(number) for number in sys.argv[1:])
    for descriptor in (own, *adopted):
        os.set_inheritable(descriptor, False)
    sock = socket.socket(fileno=own)
    channel = Channel(sock)
    birth = channel.receive()
    channel.limit = birth["call_bytes"]
    limits.apply(birth["limits"])
    announce(sock)
    install_host_call(channel)
    app = AdoptingKernelApp.instance(config=configuration())
    app.adopt = dict(enumerate(adopted, start=1))
    app.connection = birth["connection"]
    with no_debugger():
        app.initialize([])
    app.start()


if __name__ == "__main__":
    main()

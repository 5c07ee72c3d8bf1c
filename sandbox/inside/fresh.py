"""Program of a fresh kernel: `fresh CHANNEL SHELL IOPUB STDIN CONTROL HB`, each a descriptor number."""

import os
import socket
import sys

from nbrl.sandbox.inside import limits
from nbrl.sandbox.inside.adopted_kernel import (
    AdoptingKernelApp,
    announce,
    configuration,
    install_host_call,
    no_debugger,
)
from nbrl.sandbox.inside.channel import Channel
from nbrl.sandbox.inside.children import allow_forks, end_child
from nbrl.sandbox.inside.displays import bound_messages
from nbrl.sandbox.inside.shell import adjust
from nbrl.sandbox.inside.streams import CapturedStream


def main() -> None:
    own, *adopted = (int(number) for number in sys.argv[1:])
    sys.argv = [""]  # in cells, as at a prompt
    for descriptor in (own, *adopted):
        os.set_inheritable(descriptor, False)
    sock = socket.socket(fileno=own)
    channel = Channel(sock)
    birth = channel.receive()
    channel.limit = birth["call_bytes"]
    announce(sock, birth["workspace"])
    limits.apply(birth["limits"])
    CapturedStream.limit = birth["message_chars"]
    install_host_call(channel)
    app = AdoptingKernelApp.instance(config=configuration(), outstream_class=f"{CapturedStream.__module__}.CapturedStream")
    app.adopt = dict(enumerate(adopted, start=1))
    app.connection = birth["connection"]
    with no_debugger():
        app.initialize([])
    allow_forks()
    adjust(app.shell)
    bound_messages(app.session, birth["message_chars"], birth["picture_bytes"], birth["message_bytes"])
    app.start()
    end_child()


if __name__ == "__main__":
    main()

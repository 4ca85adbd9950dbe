"""``python -m workbench.fork NAME ID MODULES LISTENER``: the template of a node without a head."""

from __future__ import annotations

import socket
import sys

from workbench.fork.template import Template
from workbench.host import output

if __name__ == "__main__":
    output.keep_on()
    MODULES, LISTENER = sys.argv[3:5]
    Template.of(socket.socket(fileno=int(LISTENER)), MODULES).serve()

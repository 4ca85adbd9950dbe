"""A module whose import starts a thread."""

import threading

threading.Thread(target=threading.Event().wait, args=(600,), daemon=True).start()

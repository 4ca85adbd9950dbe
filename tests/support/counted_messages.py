"""Messages from rank to rank, and what there is to wait for them, with what is sent: by the names of operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.counting import RING, Case, ahead, behind, of, pickled, text, times, z


def messages() -> dict[str, Case]:  # noqa: C901, PLR0915  (a list of cases)
    from mpi4py import MPI

    def buffered(run: Callable[[Any], None]) -> Callable[[Any], None]:
        def case(comm: Any) -> None:
            MPI.Attach_buffer(bytearray(10_000 + MPI.BSEND_OVERHEAD))
            try:
                run(comm)
            finally:
                MPI.Detach_buffer()

        return case

    def send(name: str) -> Callable[[Any], None]:
        def case(comm: Any) -> None:
            expected = comm.Irecv(z(3), behind(comm))
            comm.Barrier()  # Rsend wants to be expected
            sent = getattr(comm, name)(z(3), ahead(comm))
            expected.Wait()
            if sent is not None:
                sent.Wait()

        return case

    def send_object(name: str) -> Callable[[Any], None]:
        def case(comm: Any) -> None:
            expected = comm.irecv(None, behind(comm), 4)
            sent = getattr(comm, name)(text(comm.rank), ahead(comm), tag=4)
            assert expected.wait() == text(behind(comm))
            assert sent is None or sent.wait() is None

        return case

    def persistent(name: str) -> Callable[[Any], None]:
        def case(comm: Any) -> None:
            expected = comm.Recv_init(z(3), behind(comm))
            request = getattr(comm, name)(z(3), ahead(comm))
            for _ in range(2):
                expected.Start()
                comm.Barrier()
                request.Start()
                expected.Wait()
                request.Wait()
            expected.Free()
            request.Free()

        return case

    def at_once(comm: Any) -> None:
        requests = [comm.Recv_init(z(3), behind(comm)), comm.Send_init(z(3), ahead(comm))]
        requests[0].Startall(requests)
        requests[0].Waitall(requests)
        for request in requests:
            request.Free()

    def partitioned(comm: Any) -> None:
        sending = comm.Psend_init(z(6), 2, ahead(comm), 5)
        receiving = comm.Precv_init(z(6), 2, behind(comm), 5)
        sending.Startall([sending, receiving])
        sending.Pready_range(0, 1)
        sending.Wait()
        receiving.Wait()
        sending.Free()
        receiving.Free()

    def flushed(comm: Any) -> None:
        comm.Iflush_buffer().Wait()

    def receive(name: str) -> Callable[[Any], None]:
        def case(comm: Any) -> None:
            request = comm.Isend(z(3), ahead(comm))
            got = getattr(comm, name)(z(3), behind(comm))
            if got is not None:
                got.Wait()
            request.Wait()

        return case

    def receive_object(name: str) -> Callable[[Any], None]:
        def case(comm: Any) -> None:
            request = comm.isend(text(comm.rank), ahead(comm))
            got = getattr(comm, name)(source=behind(comm))
            assert (got if isinstance(got, str) else got.wait()) == text(behind(comm))
            request.wait()

        return case

    def exchange(comm: Any) -> None:
        comm.Sendrecv(z(3), ahead(comm), 0, z(3), behind(comm))

    def replace(comm: Any) -> None:
        comm.Sendrecv_replace(z(3), dest=ahead(comm), source=behind(comm))

    def exchange_objects(comm: Any) -> None:
        comm.sendrecv(text(comm.rank), dest=ahead(comm), source=behind(comm))

    def exchange_later(comm: Any) -> None:
        comm.Isendrecv(z(3), ahead(comm), recvbuf=z(3), source=behind(comm)).Wait()

    def replace_later(comm: Any) -> None:
        comm.Isendrecv_replace(z(3), ahead(comm), source=behind(comm)).Wait()

    def probe(name: str) -> Callable[[Any], None]:
        def case(comm: Any) -> None:
            request = comm.isend(text(comm.rank), ahead(comm))
            found = getattr(comm, name)(behind(comm))
            if name == "Mprobe":
                found.Recv(bytearray(1000))
            else:
                (comm if found is True else found).recv()
            request.wait()

        return case

    def wait(name: str) -> Callable[[Any], None]:
        def case(comm: Any) -> None:
            requests = [comm.irecv(None, behind(comm)), comm.isend(text(comm.rank), ahead(comm))]
            if name in {"Wait", "wait"}:
                for request in requests:
                    getattr(request, name)()
            else:
                getattr(requests[0], name)(requests)
                requests[0].Waitall(requests)

        return case

    doubles, texts = of(RING, 24), of(RING, lambda source, _: pickled(text(source)))
    cases: dict[str, Case] = {name: (send(name), doubles) for name in ("Send", "Ssend", "Rsend")}
    cases |= {name: (send(name), doubles) for name in ("Isend", "Issend", "Irsend")}
    cases |= {name: (buffered(send(name)), doubles) for name in ("Bsend", "Ibsend")}
    cases |= {name: (send_object(name), texts) for name in ("send", "ssend", "isend", "issend")}
    cases |= {name: (buffered(send_object(name)), texts) for name in ("bsend", "ibsend")}
    twice = times(2, doubles)
    cases |= {name: (persistent(name), twice) for name in ("Send_init", "Ssend_init", "Rsend_init", "Recv_init")}
    cases["Recv_init"] = cases["Start"] = cases["Send_init"]
    cases["Bsend_init"] = buffered(persistent("Bsend_init")), twice
    cases["Startall"] = at_once, doubles
    cases["Psend_init"] = cases["Precv_init"] = partitioned, of(RING, 48)
    cases["Iflush_buffer"] = flushed, {}
    cases |= {name: (receive(name), doubles) for name in ("Recv", "Irecv")}
    cases |= {name: (receive_object(name), texts) for name in ("recv", "irecv")}
    cases |= {"Sendrecv": (exchange, doubles), "Isendrecv": (exchange_later, doubles)}
    cases |= {"Sendrecv_replace": (replace, doubles), "Isendrecv_replace": (replace_later, doubles)}
    cases["sendrecv"] = exchange_objects, texts
    cases |= {name: (probe(name), texts) for name in ("Probe", "Mprobe", "probe", "mprobe")}
    waits = ("Wait", "Waitany", "Waitall", "Waitsome", "wait", "waitany", "waitall", "waitsome")
    return cases | {name: (wait(name), texts) for name in waits}

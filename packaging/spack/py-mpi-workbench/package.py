from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyMpiWorkbench(PythonPackage):
    """Start an MPI world that is a Dask cluster from a notebook, and see what every rank does."""

    pypi = "mpi-workbench/mpi_workbench-0.1.0.tar.gz"

    license("BSD-3-Clause")

    version("0.1.0")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-hatchling@1.27:", type="build")

    # mpi4py loads the library; the launcher must be of the same MPI
    depends_on("mpi", type="run")

    depends_on("py-bokeh@3.7:3", type=("build", "run"))
    depends_on("py-cloudpickle@3:", type=("build", "run"))
    depends_on("py-cryptography@42:", type=("build", "run"))
    depends_on("py-dask@2026.1:", type=("build", "run"))
    depends_on("py-dask-jobqueue@0.9:", type=("build", "run"))
    depends_on("py-distributed@2026.1:", type=("build", "run"))
    depends_on("py-google-crc32c@1.5:", type=("build", "run"))
    depends_on("py-ipykernel@6.29:", type=("build", "run"))
    depends_on("py-ipyparallel@9:", type=("build", "run"))
    depends_on("py-ipython@8.26:", type=("build", "run"))
    depends_on("py-jupyter-core@5.7:", type=("build", "run"))
    depends_on("py-jupyter-server@2.14:", type=("build", "run"))
    depends_on("py-mpi4py@4.1:", type=("build", "run"))
    depends_on("py-numpy@2:", type=("build", "run"))
    depends_on("py-pandas@2.2:", type=("build", "run"))
    depends_on("py-panel@1.9:1", type=("build", "run"))
    depends_on("py-param@2.1:", type=("build", "run"))
    depends_on("py-psutil@6:", type=("build", "run"))
    depends_on("py-pyarrow@16:", type=("build", "run"))
    depends_on("py-pyyaml@6:", type=("build", "run"))
    depends_on("py-scikit-learn@1.7:", type=("build", "run"))
    depends_on("py-scipy@1.13:", type=("build", "run"))
    depends_on("py-tblib@3:", type=("build", "run"))
    depends_on("py-tornado@6.4:", type=("build", "run"))
    depends_on("py-threadpoolctl@3.1:", type=("build", "run"))
    depends_on("py-tqdm@4.66:", type=("build", "run"))
    depends_on("py-traitlets@5.14:", type=("build", "run"))

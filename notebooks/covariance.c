/* Column means and covariance of a matrix whose rows are spread over the ranks of a communicator.
 *
 * Each rank passes the rows it has, one after another as in numpy; every rank gets the same results.
 * Returns MPI_SUCCESS, or the code of what went wrong: on all ranks, so that none waits for another. */

#include <mpi.h>

int covariance(MPI_Comm comm, long rows, int columns, const double *restrict X, double *restrict mean,
               double *restrict cov)
{
    long all_rows;
    int error = MPI_Allreduce(&rows, &all_rows, 1, MPI_LONG, MPI_SUM, comm);
    if (error != MPI_SUCCESS)
        return error;
    if (all_rows < 2)
        return MPI_ERR_COUNT;

    for (int i = 0; i < columns; i++)
        mean[i] = 0;
    for (long row = 0; row < rows; row++)
        for (int i = 0; i < columns; i++)
            mean[i] += X[row * columns + i];
    error = MPI_Allreduce(MPI_IN_PLACE, mean, columns, MPI_DOUBLE, MPI_SUM, comm);
    if (error != MPI_SUCCESS)
        return error;
    for (int i = 0; i < columns; i++)
        mean[i] /= all_rows;

    /* Products of what remains without the mean; the matrix is symmetric, so its upper half will do. */
    for (int i = 0; i < columns * columns; i++)
        cov[i] = 0;
    for (long row = 0; row < rows; row++) {
        const double *x = X + row * columns;
        for (int i = 0; i < columns; i++) {
            const double centered = x[i] - mean[i];
            for (int j = i; j < columns; j++)
                cov[i * columns + j] += centered * (x[j] - mean[j]);
        }
    }
    error = MPI_Allreduce(MPI_IN_PLACE, cov, columns * columns, MPI_DOUBLE, MPI_SUM, comm);
    if (error != MPI_SUCCESS)
        return error;
    for (int i = 0; i < columns; i++)
        for (int j = i; j < columns; j++)
            cov[i * columns + j] = cov[j * columns + i] = cov[i * columns + j] / (all_rows - 1);
    return MPI_SUCCESS;
}

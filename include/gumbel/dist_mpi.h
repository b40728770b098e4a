/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel_mpi: MPI transports for the groups of gumbel/dist.h.
 */
#ifndef GUMBEL_DIST_MPI_H
#define GUMBEL_DIST_MPI_H

#include <gumbel/dist.h>

#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* gumbel_mpi_transport(): make a transport over the ranks of a communicator. All ranks make the
 *  call.
 *  communicator  The call duplicates it, so that exchanges and the caller's messages never mix;
 *                errors on the duplicate are returned. MPI must be initialised. Each rank must
 *                finalise MPI only after gumbel_group_close().
 *  transport     receives the transport, with struct_size set; pass it to gumbel_group_open()
 *  waits         MPI duplicates the communicator without a time-out. An exchange is a non-blocking
 *                MPI_Iallgather, polled until the group's time-out. If an exchange fails, its
 *                receive buffer, which the transport owns, is kept until the process ends.
 *  launchers     A launcher may end all ranks when one dies, before the others can report it. Open
 *                MPI's mpirun keeps them with --enable-recovery; no option of MPICH's
 *                launcher was found that does.
 *  threads       If several groups exchange at the same time, MPI must be initialised with
 *                MPI_THREAD_MULTIPLE.
 *  returns       GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_MEMORY, GUMBEL_ERROR_GROUP.
 *                                                                                      since 0.2 */
GUMBEL_CALL gumbel_mpi_transport(MPI_Comm communicator, gumbel_transport *transport,
                                 gumbel_error *error);

/* gumbel_mpi_world(): make a transport over all ranks that mpirun started, for programs that do not
 *  use MPI themselves. The call initialises MPI with MPI_THREAD_MULTIPLE if it is not initialised.
 *  returns       as gumbel_mpi_transport(), and GUMBEL_ERROR_UNSUPPORTED if MPI cannot be
 *                initialised.                                                        since 0.2 */
GUMBEL_CALL gumbel_mpi_world(gumbel_transport *transport, gumbel_error *error);

/* gumbel_mpi_world_end(): finalise MPI if gumbel_mpi_world() initialised it. Call it after
 *  gumbel_group_close(). If the group was broken, the call does nothing, as MPI might wait for
 *  a lost rank.                                                                        since 0.2 */
GUMBEL_API void gumbel_mpi_world_end(void);

#ifdef __cplusplus
}
#endif
#endif /* GUMBEL_DIST_MPI_H */

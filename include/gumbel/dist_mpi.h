/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel_mpi: the transport of a group over MPI, for gumbel/dist.h.
 */
#ifndef GUMBEL_DIST_MPI_H
#define GUMBEL_DIST_MPI_H

#include <gumbel/dist.h>

#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* gumbel_mpi_transport(): a transport over the ranks of a communicator, which all call.
 *  communicator  is duplicated, so that exchanges and the caller's own messages never meet; errors
 *                on the duplicate return. MPI must be initialised, and finalised behind
 *                gumbel_group_close(), on each rank.
 *  transport     receives it, with struct_size set; gumbel_group_open() takes it over
 *  waits         Duplicating is MPI's own, without a time-out. An exchange is a non-blocking
 *                MPI_Iallgather that is asked for until the group's time-out; the receiving memory
 *                of one that failed is the transport's own, and stays until the process ends.
 *  launchers     end all ranks when one dies, before they can tell; Open MPI's mpirun leaves them
 *                with --enable-recovery. MPICH's did not, whatever it was told.
 *  threads       of exchanges that run at once, in several groups, MPI must have been initialised
 *                for MPI_THREAD_MULTIPLE.
 *  returns       GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_MEMORY, GUMBEL_ERROR_GROUP.
 *                                                                                      since 0.2 */
GUMBEL_CALL gumbel_mpi_transport(MPI_Comm communicator, gumbel_transport *transport,
                                 gumbel_error *error);

/* gumbel_mpi_world(): a transport over all ranks that mpirun has started, for programs that know
 *  nothing of MPI: it is initialised, for MPI_THREAD_MULTIPLE, unless it is already.
 *  returns       as gumbel_mpi_transport(), and GUMBEL_ERROR_UNSUPPORTED where MPI cannot be
 *                initialised.                                                        since 0.2 */
GUMBEL_CALL gumbel_mpi_world(gumbel_transport *transport, gumbel_error *error);

/* Finalise MPI where gumbel_mpi_world() initialised it; behind gumbel_group_close(). With a group
 * that is spent it does nothing, as MPI might wait for a rank that is no more. since 0.2 */
GUMBEL_API void gumbel_mpi_world_end(void);

#ifdef __cplusplus
}
#endif
#endif /* GUMBEL_DIST_MPI_H */

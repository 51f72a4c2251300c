#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "tests/campaign/values.h"

namespace rankloom {

// MPI's part in the reduction of a call. An average is its sum, divided afterwards; of premul_sum it gets the products.
struct MpiReduction {
  MPI_Datatype type;
  MPI_Op op;
};
// None: MPI has no type for the dtype.
std::optional<MpiReduction> mpi_reduction(const JobCall& call);
// A member's values as MPI reduces them. A bool is true as a byte of 1: MPI knows no others.
Bytes prepared(const JobCall& call, Bytes bytes);
// The call's result, of what MPI made of `size` members' values.
Bytes finished(const JobCall& call, size_t size, Bytes bytes);

// Ways in which MPI may have other bits than the oracle.
enum class Difference : uint8_t { kOrder, kNan, kNanPassedOver, kZeros, kComplexInfinity, kSaturates, kSigned, kCount };
struct WrittenDifference {
  const char* name;
  const char* reason;
};
// All that there are: any other difference is an error.
inline constexpr std::array<WrittenDifference, static_cast<size_t>(Difference::kCount)> kWrittenDifferences = {{
    {"rounded in another order",
     "MPI leaves the order of a sum or product open; the bits are those of one of all orders, two numbers at a time"},
    {"another NaN", "both have NaN: rankloom writes one, with MPI it is what the processor makes"},
    {"min or max beside NaN", "MPI does not define it, and C's comparison keeps one of the two; rankloom has NaN"},
    {"another sign of zero", "equal numbers: in min and max one of them, in products of complex numbers by the order"},
    {"complex product with infinities", "C's multiplication makes infinity (Annex G) where its formula gives NaN"},
    {"a sum saturates",
     "Open MPI's vector code for MPI_SUM of 8 and 16 bits; open-mpi/ompi#8045 says: not to be mended"},
    {"bytes compared as signed", "MPICH's MPI_MIN and MPI_MAX of MPI_UINT8_T"},
}};

// Whether each of them would be an error: integers but for the last two, and small values in every order.
bool is_exact(const JobCall& call);
// The kind of an element's difference. `inputs`: of each member, prepared; `have` by MPI and `want` by the oracle
// differ. None: it is an error.
std::optional<Difference> difference_of(const JobCall& call, const std::vector<Bytes>& inputs, const Bytes& have,
                                        const Bytes& want);

}  // namespace rankloom

#pragma once

namespace rankloom::internal {

// The calling thread does what is for the fibers' thread to do, which stands elsewhere: given_to_fibers().
inline constinit thread_local bool acts_for_fibers = false;

}  // namespace rankloom::internal

#include "tests/campaign/job.h"
namespace rankloom {
std::string to_cpp(const Job& job) { return to_text(job); }
}

#include "kernels/cpu/host_info.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace oscarkv::cpu {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

// A tree of files like the host's.
class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest()
      : root_(std::filesystem::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(root_);
  }
  ~CgroupTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::int64_t Limit() const { return CgroupMemoryLimit(root_.string()); }

 private:
  const std::filesystem::path root_;
};

TEST_F(CgroupTest, WithoutCgroupsThereIsNoLimit) { EXPECT_EQ(Limit(), kNoLimit); }

TEST_F(CgroupTest, Version2CountsTheLeastLimitOnTheWayUp) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(Limit(), kNoLimit);
  Write("sys/fs/cgroup/a/memory.max", "5000\n");
  EXPECT_EQ(Limit(), 5000);
  Write("sys/fs/cgroup/a/b/memory.max", "4000\n");
  EXPECT_EQ(Limit(), 4000);
}

TEST_F(CgroupTest, Version2InAContainerOfItsOwn) {
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/memory.max", "123456\n");
  EXPECT_EQ(Limit(), 123456);
}

TEST_F(CgroupTest, Version1LooksAtTheMemoryController) {
  Write("proc/self/cgroup", "5:cpu:/x\n4:cpuacct,memory:/y/z\n0::/\n");
  Write("sys/fs/cgroup/memory/y/z/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(Limit(), 9223372036854771712);
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "777\n");
  EXPECT_EQ(Limit(), 777);
}

TEST_F(CgroupTest, NonsenseIsNoLimit) {
  Write("proc/self/cgroup", "nonsense\n0::\n::\n");
  Write("sys/fs/cgroup/memory.max", "-5\n");
  EXPECT_EQ(Limit(), kNoLimit);
}

TEST(HostInfo, IsThere) {
  EXPECT_FALSE(ProcessorName().empty());
  EXPECT_GT(MemoryLimit(), 0);
  EXPECT_LT(MemoryLimit(), std::int64_t{1} << 50);
}

}  // namespace
}  // namespace oscarkv::cpu

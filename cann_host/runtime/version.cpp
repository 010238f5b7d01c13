// The release of CANN whose interface this is.
#include <cstdio>
#include <string>

#include "error.h"

using namespace cann_host;

namespace {

struct Release {
  int major, minor, release, patch;
};
constexpr Release cann{8, 5, 0, 0};
constexpr Release driver{25, 5, 0, 0};

void put(char* out, size_t size, const Release& r) {
  std::snprintf(out, size, "%d.%d.%d", r.major, r.minor, r.release);
}

}  // namespace

aclError aclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion* version) {
  return entry(__func__, [&] {
    require_pointer(version, "version");
    if (name < ACL_PKG_NAME_CANN || name > ACL_PKG_NAME_DRIVER) {
      refuse(ACL_ERROR_INVALID_PARAM, "name=%d is not a package of CANN", name);
    }
    const Release& r = name == ACL_PKG_NAME_DRIVER ? driver : cann;
    *version = {};
    put(version->version, sizeof version->version, r);
    std::snprintf(version->majorVersion, sizeof version->majorVersion, "%d", r.major);
    std::snprintf(version->minorVersion, sizeof version->minorVersion, "%d", r.minor);
    std::snprintf(version->releaseVersion, sizeof version->releaseVersion, "%d", r.release);
    std::snprintf(version->patchVersion, sizeof version->patchVersion, "%d", r.patch);
  });
}

aclError aclsysGetVersionStr(char* package, char* version) {
  return entry(__func__, [&] {
    require_pointer(package, "pkgName");
    require_pointer(version, "versionStr");
    put(version, ACL_PKG_VERSION_MAX_SIZE, std::string(package) == "driver" ? driver : cann);
  });
}

aclError aclrtGetVersion(int32_t* major, int32_t* minor, int32_t* patch) {
  return entry(__func__, [&] {
    require_pointer(major, "majorVersion");
    require_pointer(minor, "minorVersion");
    require_pointer(patch, "patchVersion");
    // AscendCL counts versions of its own: 1.<minor>.
    *major = 1, *minor = 12, *patch = 0;
  });
}

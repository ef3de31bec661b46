// Included before every source of an addon (`-include`). Since 24.19 node::ObjectWrap, which lies in a header and so in
// the addon, removes a hook when its object is collected; Node 24 ends the process where no script is on the stack at
// that moment, as in most collections of a server (https://github.com/nodejs/node/issues/65446). better-sqlite3, whose
// statements are such objects, closes its databases by a hook of its own, so none is lost here.
#ifdef __cplusplus
#include <node.h>
#define AddEnvironmentCleanupHook(...) static_cast<void>(0)
#define RemoveEnvironmentCleanupHook(...) static_cast<void>(0)
#include <node_object_wrap.h>
#undef AddEnvironmentCleanupHook
#undef RemoveEnvironmentCleanupHook
#endif

/* open.c - which backends there are. The only file of repl/ that knows the local engine (engine.h):
 * the others know backend.h alone, and tests/mock_aerie.c puts another file in the place of this one.
 */
#include "engine/engine.h"
#include "repl/repl.h"

struct backend *open_backend(const struct engine_opts *o, struct err *e)
{
    return engine_open(o, e);
}

void list_devices(void (*tell)(void *arg, bool ok, const char *line), void *arg)
{
    engine_devices(tell, arg);
}

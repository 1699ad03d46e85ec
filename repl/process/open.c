/* open.c - see open.h. The only file of repl/ that includes the local engine (engine.h) and the
 * remote one: the others use backend.h alone. tests/mock_aerie.c replaces this file.
 */
#include "repl/process/open.h"

#include "engine/engine.h"
#include "engine/remote/remote.h"
#include "repl/process/isolate.h"

struct backend *open_backend(const struct engine_opts *o, struct err *e)
{
    struct backend *b = o->server.url ? remote_open(o, e) : engine_open(o, e);
    isolate_after_loading();
    return b;
}

void list_devices(void (*tell)(void *arg, bool ok, const char *line), void *arg)
{
    engine_devices(tell, arg);
}

const char *kv_events_about(bool *built)
{
    return remote_kv_events(built);
}

bool look_at_server(const struct engine_opts *o, void (*tell)(void *arg, bool ok, const char *line),
                    void *arg, struct err *e)
{
    return remote_doctor(o, tell, arg, e);
}

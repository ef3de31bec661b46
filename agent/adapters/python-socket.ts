/**
 * Servers in Python that know neither keys nor unix sockets, or take keys only where all of the node can read them.
 * Their own entry point is run with a uvicorn that listens on a socket in a 0700 folder: a port without a key would be
 * open to everybody on the node.
 */
import { join } from 'node:path';
import type { UnitSpec } from '../../spec/launch.ts';
import type { AdapterContext, CommandLine } from './adapter.ts';

/** The host to give to a server: were the socket ever bypassed, it could not be bound. */
export const unbindableHost = 'listens-on-a-unix-socket.invalid';

/** Runs a console script of Python's; sockets that it bound itself are not used either. */
export function onSocket(script: string): string {
  return `
import logging, os, sys, uvicorn
# What the agent asks all the time is not worth a line of the log each.
class Others(logging.Filter):
    def filter(self, record):
        asked = record.args[2] if isinstance(record.args, tuple) and len(record.args) > 2 else ""
        return str(asked).split("?")[0] not in ("/health", "/metrics")
class SocketConfig(uvicorn.Config):
    def __init__(self, app, **settings):
        for name in ("host", "port", "fd", "uds"):
            settings.pop(name, None)
        super().__init__(app, uds=os.environ["HPCSERVE_ENGINE_SOCKET"], **settings)
        logging.getLogger("uvicorn.access").addFilter(Others())
# uvicorn.main is the function of that name, not the module.
uvicorn.Config = sys.modules["uvicorn.main"].Config = SocketConfig
serve = uvicorn.Server.serve
async def serve_on_socket(self, sockets=None):
    await serve(self)
uvicorn.Server.serve = serve_on_socket
os.umask(0o077)
import importlib.metadata
entries = importlib.metadata.entry_points(group="console_scripts", name="${script}")
sys.argv[0] = "${script}"
sys.exit(next(iter(entries)).load()())
`.trim();
}

/** A command that prints the version of a Python package, and what reads it. */
export function pythonProbe(distribution: string): {
  probeArgv: (prefix: readonly string[]) => string[];
  parseProbe: (output: string) => { version: string; unix_socket: boolean } | undefined;
} {
  const code = `import importlib.metadata as m; print("${distribution}", m.version("${distribution}"))`;
  return {
    probeArgv: (prefix) => [...prefix, 'python3', '-c', code],
    parseProbe: (output) => {
      const line = output.split('\n').find((each) => each.startsWith(`${distribution} `));
      return line === undefined
        ? undefined
        : { version: line.slice(distribution.length + 1).trim(), unix_socket: true };
    },
  };
}

/**
 * The model by a link of its served name, for engines that call it as its folder is called.
 * @returns the folder of the link, for `cwd`, beside it
 */
export function servedLink(
  unit: UnitSpec,
  context: AdapterContext,
): { folder: string; link: CommandLine['links'][number] } {
  const folder = join(context.runtime_folder, 'models');
  return { folder, link: { path: join(folder, unit.model.name), target: unit.model_path } };
}

/**
 * Any OpenAI-compatible server: the `command` of model.yaml with its fields filled in. It gets a port on loopback
 * or, where it names {socket}, a unix socket; its key is in $HPCSERVE_ENGINE_KEY, and it is asked for with it. On
 * several nodes all ranks have the same key: what meets at {leader_host}:{leader_port} can prove itself by it.
 */
import { join } from 'node:path';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { EngineAdapter } from './adapter.ts';

export const command: EngineAdapter = {
  name: 'command',
  readiness_path: '/v1/models',

  commandLine(unit, context) {
    const template = unit.model.command;
    if (!template) {
      throw new HpcserveError('E_AGENT_ENGINE_OPTION', {
        what: `${unit.model.name}: engine command without a \`command\``,
        try: 'add `command: [program, argument, …]` to the model',
      });
    }
    const socket = join(context.runtime_folder, 'engine.sock');
    const bySocket = template.some((part) => part.includes('{socket}'));
    const byPort = template.some((part) => part.includes('{port}'));
    if (bySocket === byPort) {
      throw new HpcserveError('E_AGENT_ENGINE_OPTION', {
        what: `${unit.model.name}: the command names ${bySocket ? 'both {socket} and {port}' : 'neither {socket} nor {port}'}`,
        because: 'the agent must know where the server listens',
        try: 'use exactly one of them in `command`',
      });
    }
    const { place } = context;
    if (place !== undefined && !template.some((word) => word.includes('{rank}')))
      throw new HpcserveError('E_AGENT_ENGINE_OPTION', {
        what: `${unit.model.name}: the command is to run on ${place.nodes} nodes and does not name {rank}`,
        because: 'each of them would take itself for the only one',
        try: 'give it {rank}, {nodes}, {leader_host} and {leader_port}, or ask for fewer devices (parallel)',
      });
    const fields: Record<string, string> = {
      port: String(context.port),
      host: '127.0.0.1',
      socket,
      model: unit.model_path,
      served_name: unit.model.name,
      rank: String(place?.rank ?? 0),
      nodes: String(place?.nodes ?? 1),
      leader_host: place?.leader.address ?? '127.0.0.1',
      leader_port: String(place?.leader.port ?? context.port),
    };
    return {
      argv: [...context.engine_prefix, ...template, ...unit.model.engine_args].map((part, index) =>
        index < context.engine_prefix.length ? part : fill(part, fields),
      ),
      env: { HPCSERVE_ENGINE_KEY: context.key },
      listen: bySocket ? { kind: 'socket', path: socket } : { kind: 'loopback', port: context.port },
      files: [],
      links: [],
    };
  },
};

/** Replaces known fields; other braces (JSON in an argument) stay as they are. One pass: values are not expanded. */
function fill(part: string, fields: Readonly<Record<string, string>>): string {
  return part.replace(
    /\{(port|host|socket|model|served_name|rank|nodes|leader_host|leader_port)\}/g,
    (_whole, name: string) => fields[name]!,
  );
}

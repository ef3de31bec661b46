/**
 * Ollama (https://github.com/ollama/ollama/blob/main/docs/api.md, envconfig/config.go there). It knows neither keys nor
 * unix sockets, so it runs in a network namespace of its own. The GGUF file becomes a model of its store by `ollama
 * create`, which copies it: into the unit's folder, or where OLLAMA_MODELS of the model's environment says.
 */
import { join } from 'node:path';
import { HpcserveError } from '../../spec/errors/error.ts';
import { concurrencyOf } from '../../spec/launch.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import { inPrivateNetwork, type PrivateNetworkPlan, privateNetworkArgv } from '../private-network/plan.ts';
import { type EngineAdapter, unsupportedOption } from './adapter.ts';

const program = 'ollama';

export const ollama: EngineAdapter = {
  name: 'ollama',
  readiness_path: '/v1/models',

  // In the namespace: where that is not permitted, there is no answer and nothing is started.
  probeArgv: (prefix) => [...inPrivateNetwork, ...prefix, program, '--version'],
  parseProbe: (output) => {
    const version = /(?:ollama|client) version is (\S+)/.exec(output)?.[1];
    return version === undefined ? undefined : { version, unix_socket: false };
  },

  commandLine(unit, context) {
    const { model } = unit;
    if (unit.device_count > 1) throw unsupportedOption(model, 'Ollama', 'parallel');
    if (model.precision !== 'auto') throw unsupportedOption(model, 'Ollama', `precision ${model.precision}`);
    if (model.chat_template !== undefined) throw unsupportedOption(model, 'Ollama', 'chat_template of Jinja');
    if (model.engine_args.length > 0)
      throw unsupportedOption(model, 'Ollama', 'engine_args: it is set by its environment');
    if (context.probed === undefined) throw notPermitted(model);
    const in_folder = (name: string): string => join(context.runtime_folder, name);
    const [socket, plan_file, modelfile] = ['engine.sock', 'plan.json', 'Modelfile'].map(in_folder) as [
      string,
      string,
      string,
    ];
    const plan: PrivateNetworkPlan = {
      socket,
      port: context.port,
      serve: [...context.engine_prefix, program, 'serve'],
      first: [[...context.engine_prefix, program, 'create', model.name, '--file', modelfile]],
    };
    return {
      argv: privateNetworkArgv(plan_file),
      env: {
        OLLAMA_HOST: `127.0.0.1:${context.port}`,
        ...(model.environment.OLLAMA_MODELS === undefined ? { OLLAMA_MODELS: in_folder('models') } : {}),
        OLLAMA_CONTEXT_LENGTH: String(unit.context_tokens),
        OLLAMA_NUM_PARALLEL: String(concurrencyOf(unit)),
        OLLAMA_MAX_LOADED_MODELS: '1',
        // The model stays in memory for as long as its replica lives.
        OLLAMA_KEEP_ALIVE: '-1',
        ...(model.kv_type === 'f16'
          ? {}
          : { OLLAMA_KV_CACHE_TYPE: model.kv_type, OLLAMA_FLASH_ATTENTION: '1' }),
      },
      listen: { kind: 'socket', path: socket },
      files: [
        { path: plan_file, content: JSON.stringify(plan) },
        { path: modelfile, content: `FROM ${unit.model_path}\n` },
      ],
      links: [],
    };
  },
};

function notPermitted({ name }: ModelSpec): HpcserveError {
  const argv = [...inPrivateNetwork, program, '--version'].join(' ');
  return new HpcserveError('E_AGENT_ENGINE_EXPOSED', {
    what: `${name}: Ollama is not started: everybody on the node could use it`,
    because: [
      'it knows neither keys nor unix sockets, so it has to run in a network namespace of its own',
      `\`${argv}\` gave no version: this node permits no user namespaces, or Ollama is not there`,
    ],
  });
}

/** Clients of others for JavaScript: each runs in a process of its own, on the Node and with the packages it needs. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { beforeAll, describe, expect, it } from 'vitest';
import type { ClientSdks, SdkGeneration } from '../../engines/environments.ts';

export interface SdkTarget {
  /** Without `/v1`. */
  url: string;
  key: string;
  chat_model: string;
  tools_model: string;
}

interface Sdk {
  title: string;
  program: URL;
  /** Which way of the client, where its program knows several. */
  way?: string;
  packages: SdkGeneration;
  /** All checks of its program, in their order. */
  checks: readonly string[];
  /**
   * Those that ask vLLM for what it does not bind a model with random weights to: arguments of tools that are not
   * strict, and schemas beside `json_object`. Also what needs embeddings of a model that writes.
   */
  native_only?: readonly string[];
}

const programOf = {
  agents: new URL('programs/agents.mjs', import.meta.url),
  ai_sdk: new URL('programs/ai-sdk.mjs', import.meta.url),
  anthropic: new URL('programs/anthropic.mjs', import.meta.url),
  instructor: new URL('programs/instructor.mjs', import.meta.url),
  langchain: new URL('programs/langchain.mjs', import.meta.url),
  llamaindex: new URL('programs/llamaindex.mjs', import.meta.url),
  ollama: new URL('programs/ollama.mjs', import.meta.url),
  openai: new URL('programs/openai.mjs', import.meta.url),
};
const fromPackages = new URL('programs/from-packages.mjs', import.meta.url);

const basic = ['chat', 'stream', 'abort'];
const ofOpenai = [
  ...['models', ...basic, 'choices and logprobs', 'tools', 'runTools', 'schema', 'embeddings', 'image'],
  ...['responses', 'responses: tools and schema'],
];
const ofAiSdk = [...basic, 'tools', 'schema', 'embeddings', 'image'];
const ofLangchain = [...basic, 'tools', 'schema', 'image'];
const ofAgents = ['chat', 'stream', 'tools', 'schema'];
const ofInstructor = ['tools', 'tools, streamed', 'functions', 'schema'];

/** As many as can be had by npm; versions are those of `test/engines/sdks/`. */
const sdks: readonly Sdk[] = [
  { title: 'openai 4', program: programOf.openai, way: 'openai', packages: 'earlier', checks: ofOpenai },
  { title: 'openai 5', program: programOf.openai, way: 'openai-5', packages: 'earlier', checks: ofOpenai },
  { title: 'openai 7', program: programOf.openai, way: 'openai', packages: 'current', checks: ofOpenai },
  ...['responses', 'chats', 'compatible'].map((way) => ({
    title: `AI SDK 7, ${way}`,
    ...{ program: programOf.ai_sdk, way, packages: 'current' as const, checks: ofAiSdk },
  })),
  {
    title: 'LangChain, chats',
    ...{ program: programOf.langchain, way: 'chats', packages: 'current' },
    checks: [...ofLangchain, 'choices and logprobs', 'embeddings'],
  },
  {
    title: 'LangChain, responses',
    ...{ program: programOf.langchain, way: 'responses', packages: 'current', checks: ofLangchain },
  },
  {
    title: 'LlamaIndex, chats',
    ...{ program: programOf.llamaindex, way: 'chats', packages: 'current' },
    checks: [...ofAgents, 'embeddings', 'retrieval'],
    native_only: ['tools', 'retrieval'],
  },
  {
    title: 'LlamaIndex, responses',
    ...{ program: programOf.llamaindex, way: 'responses', packages: 'current', checks: ofAgents },
    native_only: ['tools'],
  },
  ...['responses', 'chats'].map((way) => ({
    title: `@openai/agents, ${way}`,
    ...{ program: programOf.agents, way, packages: 'current' as const, checks: ofAgents },
  })),
  {
    title: 'instructor',
    ...{ program: programOf.instructor, packages: 'earlier' },
    checks: ofInstructor,
    native_only: ofInstructor,
  },
  {
    title: 'Anthropic',
    ...{ program: programOf.anthropic, packages: 'current', checks: [...basic, 'tools', 'image'] },
  },
  {
    title: 'ollama',
    ...{ program: programOf.ollama, packages: 'current' },
    checks: ['models', ...basic, 'schema', 'embeddings', 'image'],
  },
];

/** How long one client may take for all of its checks, ms. */
const client_ms = 90_000;

/** What each client makes of the server. */
export function testSdks(installed: ClientSdks, engine: 'native' | 'vllm', target: () => SdkTarget): void {
  const withoutNative = (sdk: Sdk): Sdk => ({
    ...sdk,
    checks: sdk.checks.filter((name) => !sdk.native_only?.includes(name)),
  });
  const these =
    engine === 'native' ? sdks : sdks.map(withoutNative).filter(({ checks }) => checks.length > 0);
  describe.each(these)('$title', ({ program, way, packages, checks, native_only = [] }) => {
    const outcomes = new Map<string, string | null>();

    beforeAll(async () => {
      const argv = ['--import', fromPackages.href, fileURLToPath(program), ...(way ? [way] : [])];
      const { url, key, chat_model, tools_model } = target();
      const { stdout } = await promisify(execFile)(installed.node, argv, {
        timeout: client_ms,
        env: {
          PATH: process.env.PATH,
          HPCSERVE_TEST_PACKAGES: installed.folders[packages],
          HPCSERVE_TEST_CHAT_MODEL: chat_model,
          HPCSERVE_TEST_TOOLS_MODEL: tools_model,
          HPCSERVE_TEST_ENGINE: engine,
          HPCSERVE_TEST_LEFT_OUT: JSON.stringify(engine === 'native' ? [] : native_only),
          OPENAI_BASE_URL: `${url}/v1`,
          OPENAI_API_KEY: key,
        },
      });
      for (const line of stdout.trim().split('\n')) {
        const { name, failed } = JSON.parse(line) as { name: string; failed: string | null };
        outcomes.set(name, failed);
      }
    }, client_ms + 10_000);

    it.each(checks)('%s', (name) => {
      expect(outcomes.get(name)).toBeNull();
    });

    it('ran every check of its program', () => {
      expect([...outcomes.keys()]).toEqual(checks);
    });
  });
}

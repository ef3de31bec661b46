/**
 * Streams of a real vLLM that lose their replica at each of many tokens, and say the same as undisturbed. Two sessions
 * pass on to one engine; a byte-level model with random weights, half of whose bytes are no UTF-8. Needs
 * `npm run engines -- vllm`.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { agentPaths } from '../../spec/wire.ts';
import { vllmPython } from '../engines/environments.ts';
import { writeTinyModel } from '../engines/tiny-model.ts';
import { freePort } from '../free-port.ts';
import { type Answer, type Stage, startStage, until } from '../gateway/support.ts';
import { type WholeStream, wholeStream } from './support.ts';

const { found: python, lacking } = vllmPython();
const key = 'a-key-of-this-test';
const tokens = 60;
const chatPath = '/v1/chat/completions';
const textPath = '/v1/completions';
const chat = {
  model: 'tiny',
  messages: [{ role: 'user', content: 'hi' }],
  max_tokens: tokens,
  temperature: 0,
};
const text = { model: 'tiny', prompt: 'once ', max_tokens: tokens, temperature: 0, ignore_eos: true };

describe.skipIf(python === undefined)(`a stream of a real vLLM${lacking}`, () => {
  let folder: string;
  let engine: ChildProcess;
  let stage: Stage;
  let lost_after: number | undefined;

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'hpcserve-vllm-test-'));
    writeTinyModel(python!, join(folder, 'tiny'));
    const port = await freePort();
    engine = startEngine(folder, port);
    const url = `http://127.0.0.1:${port}`;
    const answers = async (): Promise<boolean> => {
      if (engine.exitCode !== null) throw new Error(readFileSync(join(folder, 'log'), 'utf8').slice(-4000));
      return fetch(`${url}/health`).then(
        ({ ok }) => ok,
        () => false,
      );
    };
    await until(answers, 'vLLM to serve', 280_000);
    stage = await startStage({ continue_ms: 2000 });
    for (const node of ['a', 'b'])
      await stage.session(passedOn(url), { node, engine: 'vllm', precision: 'f32', context_tokens: 512 });
  }, 300_000);
  afterAll(async () => {
    await stage?.close();
    if (engine?.pid && engine.exitCode === null && engine.signalCode === null) {
      const ended = once(engine, 'exit');
      process.kill(-engine.pid, 'SIGKILL');
      await ended;
    }
    rmSync(folder, { recursive: true, force: true });
  });

  /** Passes a request on to the engine, and breaks off once so many tokens of the answer have come. */
  function passedOn(url: string): Answer {
    return async (seen, response) => {
      const path = seen.path === agentPaths.detokenize ? '/detokenize' : seen.path;
      const cancel = new AbortController();
      const upstream = await fetch(url + path, {
        method: 'POST',
        headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
        body: seen.body,
        signal: cancel.signal,
      }).catch((error: unknown) => {
        // It has ended, which its log says.
        response.destroy();
        throw error;
      });
      response.writeHead(upstream.status, { 'content-type': upstream.headers.get('content-type')! });
      let rest = '';
      let made = 0;
      for await (const part of upstream.body!.pipeThrough(new TextDecoderStream())) {
        rest += part;
        for (let end = rest.indexOf('\n\n'); end !== -1; end = rest.indexOf('\n\n')) {
          const event = rest.slice(0, end + 2);
          rest = rest.slice(end + 2);
          await new Promise((resolve) => response.write(event, resolve));
          made += JSON.parse(`[${/"token_ids":\[([\d,]*)\]/.exec(event)?.[1] ?? ''}]`).length;
          if (lost_after === undefined || made < lost_after) continue;
          lost_after = undefined;
          response.destroy();
          cancel.abort();
          return;
        }
      }
      response.end(rest);
    };
  }

  async function read(path: string, body: object, position?: number): Promise<WholeStream> {
    lost_after = position;
    const asked = { stream: true, stream_options: { include_usage: true }, ...body };
    const whole = wholeStream(await (await stage.post(path, asked)).text());
    expect(lost_after, 'the replica was to be lost').toBeUndefined();
    return whole;
  }

  /** @param positions of the losses, or how many there are from the first token on */
  async function compareAtEach(
    path: string,
    body: object,
    positions: number | readonly number[],
  ): Promise<WholeStream> {
    const undisturbed = await read(path, body);
    expect([undisturbed.error, undisturbed.ending]).toEqual([undefined, 'data: [DONE]']);
    const each =
      typeof positions === 'number' ? Array.from({ length: positions }, (_, at) => at + 1) : positions;
    for (const position of each)
      expect(await read(path, body, position), `lost at token ${position}`).toEqual(undisturbed);
    return undisturbed;
  }

  it.each([
    ['a chat', chatPath, { ...chat, ignore_eos: true }],
    ['a completion', textPath, text],
  ])(
    'of %s says the same wherever it is lost',
    async (_, path, body) => {
      const whole = await compareAtEach(path, body, 50);
      expect(whole.choices[0]!.text).toContain('\ufffd');
      expect(whole.usage).toMatchObject({ completion_tokens: tokens });
    },
    300_000,
  );

  it('of several choices, and with the limit of its context', async () => {
    // It has several choices only of sampled answers: these are, of one token each.
    const several = { ignore_eos: true, n: 2, temperature: 1, top_k: 1 };
    await compareAtEach(chatPath, { ...chat, ...several }, 12);
    await compareAtEach(textPath, { ...text, ...several, prompt: ['once ', 'twice '] }, 12);
    const { max_tokens: _, ...unlimited } = chat;
    expect((await compareAtEach(chatPath, { ...unlimited, ignore_eos: true }, 5)).usage).toMatchObject({
      total_tokens: 512,
    });
  }, 300_000);

  const held = { presence_penalty: 1.5, frequency_penalty: 0.5 };

  it('that is greedy, with what is held against repetition', async () => {
    const plain = await read(textPath, text);
    for (const [path, body] of [
      [chatPath, { ...chat, ignore_eos: true }],
      [textPath, text],
    ] as const) {
      const whole = await compareAtEach(path, { ...body, ...held }, [1, 17, 40]);
      expect(whole.choices[0]!.text).not.toBe(plain.choices[0]!.text);
    }
  }, 120_000);

  it.each([
    ['a chat', chatPath, chat],
    ['a completion', textPath, text],
  ])(
    'of %s that is drawn by a seed, of several choices and with what is held against repetition',
    async (_, path, body) => {
      const drawn = { ...body, ignore_eos: true, temperature: 1, seed: 7 };
      await compareAtEach(path, drawn, [1, 17, 40]);
      const whole = await compareAtEach(path, { ...drawn, ...held, n: 2 }, [1, 17, 40]);
      const [first, second] = whole.choices;
      expect(first!.text).not.toBe(second!.text);
      const other = await read(path, { ...drawn, ...held, n: 2, seed: 70 });
      expect(other.choices).not.toEqual(whole.choices);
    },
    120_000,
  );

  it('that is drawn without a seed has all its tokens, each choice', async () => {
    const body = { ...text, ...held, temperature: 1, n: 2 };
    for (const position of [1, 17, 40]) {
      const whole = await read(textPath, body, position);
      expect([whole.error, whole.ending, whole.identities]).toEqual([undefined, 'data: [DONE]', 1]);
      expect(whole.choices.map(({ finish_reason }) => finish_reason)).toEqual(['length', 'length']);
      expect(whole.usage).toMatchObject({ completion_tokens: 2 * tokens });
    }
  }, 120_000);

  it('with a stop string that begins before it moves', async () => {
    const whole = (await read(textPath, text)).choices[0]!.text;
    const stop = [...whole].slice(20, 24).join('');
    await compareAtEach(textPath, { ...text, stop: [stop] }, 10);
  }, 300_000);
});

function startEngine(folder: string, port: number): ChildProcess {
  const log = openSync(join(folder, 'log'), 'w');
  const bin = dirname(python!);
  const argv = [
    ...[
      'serve',
      join(folder, 'tiny'),
      '--served-model-name',
      'tiny',
      '--host',
      '127.0.0.1',
      '--port',
      `${port}`,
    ],
    ...['--max-model-len', '512', '--gpu-memory-utilization', '0.04', '--enforce-eager'],
    // In BF16 two tokens are often equally likely, and chance decides.
    ...['--dtype', 'float32', '--max-num-seqs', '8', '--no-enable-prefix-caching'],
  ];
  const environment = {
    VLLM_API_KEY: key,
    VLLM_CPU_KVCACHE_SPACE: '1',
    VLLM_CPU_OMP_THREADS_BIND: 'nobind',
    OMP_NUM_THREADS: '1',
    VLLM_NO_USAGE_STATS: '1',
  };
  const child = spawn(join(bin, 'vllm'), argv, {
    env: { ...process.env, ...environment, PATH: `${bin}:${process.env.PATH}`, HF_HUB_OFFLINE: '1' },
    stdio: ['ignore', log, log],
    detached: true,
  });
  closeSync(log);
  return child;
}

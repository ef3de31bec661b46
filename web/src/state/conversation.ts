/** The chat of this tab. It is kept while the page is open, and nowhere else. */
import {
  type AnsweredBy,
  type ChatParameters,
  type ChatTurn,
  type ChatUsage,
  chatStream,
} from '../api/chat-stream.ts';
import { GatewayError } from '../api/client.ts';
import { gatewayAnswered, gatewayFailed } from './connection.ts';
import { signIn } from './sign-in.ts';
import { Store } from './store.ts';

export interface Message {
  id: number;
  role: 'user' | 'assistant';
  content: string;
  reasoning?: string;
  model?: string;
  by?: AnsweredBy;
  usage?: ChatUsage;
  ttft_ms?: number;
  /** From the first token to the last. */
  decode_ms?: number;
  /** `stop`, `length`, …; `stopped` by the user; absent while it comes. */
  finish?: string;
  error?: { message: string; code: string };
}

export interface Settings {
  model: string;
  system: string;
  /** As they were typed; empty: the model's default. */
  temperature: string;
  top_p: string;
  max_tokens: string;
  seed: string;
}

export const messages = new Store<readonly Message[]>([]);
export const settings = new Store<Settings>({
  model: '',
  system: '',
  temperature: '',
  top_p: '',
  max_tokens: '',
  seed: '',
});
/** Ends the answer that comes; undefined where none does. */
export const answering = new Store<AbortController | undefined>(undefined);

let lastId = 0;

signIn.watch(() => {
  if (!signIn.value) newConversation();
});

export function newConversation(): void {
  stop();
  messages.set([]);
}

export function stop(): void {
  answering.value?.abort();
}

export async function send(content: string): Promise<void> {
  messages.set([...messages.value, { id: ++lastId, role: 'user', content }]);
  await answer();
}

/** The last answer anew. */
export async function regenerate(): Promise<void> {
  const last = messages.value.at(-1);
  if (last?.role === 'assistant') messages.set(messages.value.slice(0, -1));
  await answer();
}

async function answer(): Promise<void> {
  const controller = new AbortController();
  const { model, system } = settings.value;
  const turns: ChatTurn[] = messages.value.map(({ role, content }) => ({ role, content }));
  if (system.trim() !== '') turns.unshift({ role: 'system', content: system });
  let message: Message = { id: ++lastId, role: 'assistant', content: '', model };
  const conversation = messages.value;
  const show = (changes: Partial<Message>): void => {
    message = { ...message, ...changes };
    // Of a conversation that was cleared meanwhile nothing is shown.
    if (answering.value === controller) messages.set([...conversation, message]);
  };
  answering.set(controller);
  show({});
  const began_ms = performance.now();
  let first_ms: number | undefined;
  try {
    const pieces = chatStream({
      secret: signIn.value?.chat_key ?? '',
      model,
      messages: turns,
      parameters: parametersOf(settings.value),
      signal: controller.signal,
      onHead: (by) => {
        gatewayAnswered();
        show({ by });
      },
    });
    for await (const { content, reasoning, finish_reason, usage } of pieces) {
      const changes: Partial<Message> = {};
      if (content ?? reasoning) {
        first_ms ??= performance.now();
        changes.ttft_ms = first_ms - began_ms;
        changes.decode_ms = performance.now() - first_ms;
      }
      if (content) changes.content = message.content + content;
      if (reasoning) changes.reasoning = (message.reasoning ?? '') + reasoning;
      if (finish_reason) changes.finish = finish_reason;
      if (usage) changes.usage = usage;
      show(changes);
    }
    show({ finish: message.finish ?? 'stop' });
  } catch (thrown) {
    show(
      controller.signal.aborted
        ? { finish: 'stopped' }
        : { finish: 'error', error: wordsOf(thrown as Error) },
    );
  } finally {
    if (answering.value === controller) answering.set(undefined);
  }
}

function wordsOf(error: Error): { message: string; code: string } {
  if (error instanceof GatewayError) return { message: error.message, code: error.code };
  gatewayFailed(error);
  return { message: `The answer did not come whole: ${error.message}.`, code: '' };
}

function parametersOf(typed: Settings): ChatParameters {
  const parameters: ChatParameters = {};
  for (const name of ['temperature', 'top_p', 'max_tokens', 'seed'] as const)
    if (typed[name].trim() !== '' && Number.isFinite(Number(typed[name])))
      parameters[name] = Number(typed[name]);
  return parameters;
}

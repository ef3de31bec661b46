import { count, duration, number, plural } from '../format.ts';
import type { Message } from '../state/conversation.ts';
import { Button, CopyButton } from './basics.tsx';
import { Markdown } from './markdown.tsx';

interface MessageProps {
  message: Message;
  /** More of it is on its way. */
  coming: boolean;
  onAgain: (() => void) | undefined;
}

export function MessageView({ message, coming, onAgain }: MessageProps) {
  const { role, content, reasoning, error } = message;
  if (role === 'user')
    return (
      <article class="message user" aria-label="You">
        <p>{content}</p>
      </article>
    );
  return (
    <article class="message assistant" aria-label={message.model}>
      {reasoning && (
        <details class="reasoning" open={content === ''}>
          <summary>Reasoning</summary>
          <p>{reasoning}</p>
        </details>
      )}
      {content && <Markdown text={content} />}
      {coming && <span class="caret" aria-label="The answer is coming" role="img" />}
      {error && (
        <div class="trouble" role="alert">
          <p>{error.message}</p>
          {error.code && <p class="code">{error.code}</p>}
        </div>
      )}
      {!coming && (
        <footer>
          <span class="message-facts">{facts(message)}</span>
          <CopyButton text={content} label="Copy the answer" />
          {onAgain && <Button icon="again" kind="plain" label="Answer again" onClick={onAgain} />}
        </footer>
      )}
    </article>
  );
}

const endings: Readonly<Record<string, string>> = {
  length: 'cut at the most tokens',
  stopped: 'stopped',
  content_filter: 'filtered',
};

/** Who answered, how long, and how fast. */
function facts({ model, by, usage, ttft_ms, decode_ms, finish = '' }: Message): string {
  const said: (string | undefined)[] = [by?.model ?? model];
  said.push(by?.node && `on ${by.node}${by.device ? ` (${by.device})` : ''}`);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    said.push(
      `${count(usage.prompt_tokens)} prompt ${cached ? `(${count(cached)} cached) ` : ''}+ ${plural(usage.completion_tokens, 'answer token')}`,
    );
    if (decode_ms && usage.completion_tokens > 1)
      said.push(`${number((1000 * (usage.completion_tokens - 1)) / decode_ms)} tokens/s`);
  }
  if (ttft_ms !== undefined) said.push(`first after ${duration(ttft_ms)}`);
  said.push(endings[finish]);
  return said.filter(Boolean).join(' · ');
}

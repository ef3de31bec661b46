import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { Button, Empty, PageHead } from '../parts/basics.tsx';
import { ChatKey } from '../parts/chat-key.tsx';
import { ChatSettings } from '../parts/chat-settings.tsx';
import { MessageView } from '../parts/message.tsx';
import {
  answering,
  messages,
  newConversation,
  regenerate,
  type Settings,
  send,
  settings,
  stop,
} from '../state/conversation.ts';
import { usePoll } from '../state/poll.ts';
import { meshTable } from '../state/questions.ts';
import { route } from '../state/route.ts';
import { signIn } from '../state/sign-in.ts';
import { useStore } from '../state/store.ts';

export function Chat() {
  const signedIn = useStore(signIn);
  if (signedIn?.chat_key === undefined) return <ChatKey />;
  return <Conversation />;
}

function Conversation() {
  const said = useStore(messages);
  const chosen = useStore(settings);
  const busy = useStore(answering) !== undefined;
  const names = useModelNames(chosen);
  const [tuning, setTuning] = useState(false);
  useEscape(busy);
  return (
    <div class="chat">
      <PageHead title="Chat">
        <label class="inline-field">
          <span class="visually-hidden">Model</span>
          <select
            value={chosen.model}
            disabled={busy}
            onChange={(event) => settings.set({ ...chosen, model: event.currentTarget.value })}
          >
            {names.length === 0 && <option value="">no model serves</option>}
            {names.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <Button icon="tune" pressed={tuning} onClick={() => setTuning(!tuning)}>
          Parameters
        </Button>
        <Button icon="plus" disabled={said.length === 0} onClick={newConversation}>
          New
        </Button>
      </PageHead>
      {tuning && <ChatSettings chosen={chosen} />}
      <Messages busy={busy} />
      <Composer busy={busy} model={chosen.model} />
    </div>
  );
}

/** Names that can be asked; the first one, or that of the address, is chosen. */
function useModelNames(chosen: Settings): string[] {
  const { data } = usePoll(meshTable);
  const { query } = useStore(route);
  const wanted = query.get('model');
  const serving = (data?.sessions ?? []).flatMap(({ reachable, models }) =>
    reachable ? models.filter(({ state }) => state === 'serving') : [],
  );
  const names = [...new Set([...serving.flatMap(({ name, aliases }) => [name, ...aliases]), wanted ?? ''])]
    .filter(Boolean)
    .sort();
  const joined = names.join('\n');
  useEffect(() => {
    if (wanted) settings.set({ ...settings.value, model: wanted });
    else if (!names.includes(chosen.model) && names[0] !== undefined)
      settings.set({ ...settings.value, model: names[0] });
  }, [joined, wanted]);
  return names;
}

function useEscape(busy: boolean): void {
  useEffect(() => {
    if (!busy) return;
    const onKey = (event: KeyboardEvent): void => {
      if (event.key === 'Escape' && !document.querySelector('dialog[open]')) stop();
    };
    document.addEventListener('keydown', onKey);
    return () => document.removeEventListener('keydown', onKey);
  }, [busy]);
}

/** Closer to the end than this, one reads along, and what comes is scrolled to. */
const along_px = 80;

function Messages({ busy }: { busy: boolean }) {
  const said = useStore(messages);
  const list = useRef<HTMLDivElement>(null);
  const along = useRef(true);
  const last = said.at(-1);
  useLayoutEffect(() => {
    if (along.current && list.current) list.current.scrollTop = list.current.scrollHeight;
  }, [said]);
  return (
    <div
      class="messages"
      ref={list}
      tabIndex={0}
      role="log"
      aria-label="Conversation"
      aria-busy={busy}
      onScroll={({ currentTarget: { scrollHeight, scrollTop, clientHeight } }) => {
        along.current = scrollHeight - scrollTop - clientHeight < along_px;
      }}
    >
      {said.length === 0 && (
        <Empty title="Ask something.">
          <p>What is written here is kept in this tab alone, until it is closed or you sign out.</p>
        </Empty>
      )}
      {said.map((message) => (
        <MessageView
          key={message.id}
          message={message}
          coming={busy && message === last}
          onAgain={
            !busy && message === last && message.role === 'assistant' ? () => void regenerate() : undefined
          }
        />
      ))}
    </div>
  );
}

function Composer({ busy, model }: { busy: boolean; model: string }) {
  const [text, setText] = useState('');
  const area = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const element = area.current!;
    element.style.height = 'auto';
    element.style.height = `${element.scrollHeight + 2}px`;
  }, [text]);
  useEffect(() => {
    // On a small screen the keyboard would cover what is there to read.
    if (matchMedia('(min-width: 760px)').matches) area.current?.focus();
  }, []);
  const submit = (): void => {
    const words = text.trim();
    if (busy || words === '' || model === '') return;
    setText('');
    void send(words);
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <textarea
        ref={area}
        rows={1}
        aria-label="Message"
        placeholder={model === '' ? 'No model serves now' : `Ask ${model}`}
        data-slash
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
          event.preventDefault();
          submit();
        }}
      />
      {busy ? (
        <Button icon="stop" kind="primary" label="Stop (Esc)" onClick={stop} />
      ) : (
        <Button
          icon="send"
          kind="primary"
          type="submit"
          label="Send (Enter)"
          disabled={text.trim() === '' || model === ''}
        />
      )}
    </form>
  );
}

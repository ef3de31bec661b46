import { useState } from 'preact/hooks';
import { ask } from '../api/client.ts';
import type { MadeKey } from '../api/rows.ts';
import { request } from '../state/poll.ts';
import { signIn } from '../state/sign-in.ts';
import { Button, Field, PageHead } from './basics.tsx';

/** The operator's token asks no model: a key does. */
export function ChatKey() {
  const [typed, setTyped] = useState('');
  const [trouble, setTrouble] = useState<string>();
  const use = (chat_key: string): void => {
    if (signIn.value) signIn.set({ ...signIn.value, chat_key });
  };
  const attempt = (act: () => Promise<void>) => (): void => {
    setTrouble(undefined);
    act().catch((error: Error) => setTrouble(error.message));
  };
  const useTyped = attempt(async () => {
    await ask('v1/models', { secret: typed.trim() });
    use(typed.trim());
  });
  const make = attempt(async () => {
    const body = { name: `dashboard ${new Date().toISOString().slice(0, 10)}` };
    use((await request<MadeKey>('hpcserve/v1/keys', { method: 'POST', body })).key);
  });
  return (
    <>
      <PageHead
        title="Chat"
        note="You are signed in as the operator. Models are asked with an API key, so that what is used has an owner."
      />
      <form
        class="chat-key"
        onSubmit={(event) => {
          event.preventDefault();
          useTyped();
        }}
      >
        <Field label="API key" hint="It stays in this tab.">
          <input
            type="password"
            autoComplete="off"
            data-slash
            value={typed}
            onInput={(event) => setTyped(event.currentTarget.value)}
          />
        </Field>
        <p class="form-trouble" role="alert">
          {trouble}
        </p>
        <div class="dialog-foot">
          <Button onClick={make}>Make a key for this tab</Button>
          <Button kind="primary" type="submit" disabled={typed.trim() === ''}>
            Use the key
          </Button>
        </div>
      </form>
    </>
  );
}

import { useState } from 'preact/hooks';
import { GatewayError, gatewayRoot } from '../api/client.ts';
import { Button, Field } from '../parts/basics.tsx';
import { Mark } from '../parts/mark.tsx';
import { goToProvider, offered } from '../state/login.ts';
import { signedOutBecause, signInWith } from '../state/sign-in.ts';
import { useStore } from '../state/store.ts';

export function SignInPage() {
  const because = useStore(signedOutBecause);
  const [secret, setSecret] = useState('');
  const [trouble, setTrouble] = useState<string>();
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setTrouble(undefined);
    try {
      await signInWith(secret.trim());
    } catch (error) {
      setTrouble(wordsFor(error as Error));
      setBusy(false);
    }
  };
  return (
    <main class="sign-in">
      <form onSubmit={submit}>
        <p class="brand">
          <Mark /> hpcserve
        </p>
        <h1>Sign in</h1>
        <p class="note">
          to the gateway at <code>{gatewayRoot}</code>
        </p>
        {because !== undefined && (
          <p class="banner warn" role="status">
            {because}
          </p>
        )}
        <ProviderButton onTrouble={setTrouble} />
        <Field
          label="API key, or the operator’s token"
          hint="It stays in this tab and is sent to this gateway alone."
        >
          <input
            type="password"
            autoComplete="off"
            spellcheck={false}
            ref={focus}
            required
            value={secret}
            onInput={(event) => setSecret(event.currentTarget.value)}
            aria-describedby="sign-in-trouble"
          />
        </Field>
        <p id="sign-in-trouble" class="form-trouble" role="alert">
          {trouble}
        </p>
        <Button kind="primary" type="submit" disabled={busy || secret.trim() === ''}>
          {busy ? 'Asking the gateway …' : 'Sign in'}
        </Button>
        <dl class="where">
          <dt>A key</dt>
          <dd>
            <code>hpcserve endpoint --env</code> prints yours as <code>OPENAI_API_KEY</code>. It shows models,
            jobs, load and chat.
          </dd>
          <dt>The operator’s token</dt>
          <dd>
            is in <code>admin.token</code> of the gateway’s folder, for who runs it. It shows usage and keys
            too.
          </dd>
        </dl>
      </form>
    </main>
  );
}

/** While the gateway asks the provider who that is. */
export function SigningIn() {
  return (
    <main class="sign-in">
      <p class="brand">
        <Mark /> hpcserve
      </p>
      <h1>Signing in …</h1>
    </main>
  );
}

/** Where the gateway knows people by a provider; keys are taken beside it. */
function ProviderButton({ onTrouble }: { onTrouble: (words: string | undefined) => void }) {
  const login = useStore(offered);
  const [busy, setBusy] = useState(false);
  if (!login) return null;
  const go = (): void => {
    setBusy(true);
    onTrouble(undefined);
    goToProvider().catch((error: Error) => {
      setBusy(false);
      onTrouble(wordsFor(error));
    });
  };
  return (
    <>
      <Button kind="primary" disabled={busy} onClick={go}>
        Sign in with {login.name}
      </Button>
      <p class="note">or with a key:</p>
    </>
  );
}

/** Of one place, so that it is called when the field comes and not whenever something is drawn. */
function focus(field: HTMLInputElement | null): void {
  field?.focus();
}

function wordsFor(error: Error): string {
  if (!(error instanceof GatewayError)) return 'The gateway does not answer. Is it still running?';
  if (error.isSignedOut) return 'The gateway knows no such key or token.';
  return error.message;
}

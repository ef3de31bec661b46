/**
 * Signing in at the provider of the site. The page makes a secret and keeps it in its storage, which browsers part by
 * host and port; the gateway takes the cookie of the session only together with it.
 */
import { ask, askJson, GatewayError, gatewayRoot, sessionSecret } from '../api/client.ts';
import { signedOutBecause, signIn, signInWith, whenSignedOut } from './sign-in.ts';
import { Store } from './store.ts';

/** How people are called to sign in, where the gateway lets them; undefined where it does not, or is not known yet. */
export const offered = new Store<{ name: string } | undefined>(undefined);
/** A sign-in is being finished: nothing else is to be shown. */
export const isFinishing = new Store(false);

/** Of this gateway: others may lie below the same host. */
const storageName = `hpcserve.page ${new URL(gatewayRoot).pathname}`;
const secret_bytes = 32;

/** Leaves the page for the provider's. @throws GatewayError, UnreachableError */
export async function goToProvider(): Promise<void> {
  const page = newSecret();
  const body = { page, root: gatewayRoot };
  const { url } = await askJson<{ url: string }>('hpcserve/v1/login/begin', { method: 'POST', body });
  localStorage.setItem(storageName, page);
  location.assign(url);
}

/** When the page is opened: ends a sign-in that comes back from the provider, or goes on with a session. */
export async function resume(): Promise<void> {
  const answer = location.search.slice(1);
  const comesBack = /(^|&)state=/.test(answer);
  // The code is for the gateway alone, and this once.
  if (comesBack) history.replaceState(null, '', location.pathname + location.hash);
  void askJson<{ login: { name: string } | null }>('hpcserve/v1/login').then(
    ({ login }) => offered.set(login ?? undefined),
    // An older gateway, or none: keys are taken as ever.
    () => undefined,
  );
  const page = localStorage.getItem(storageName);
  if (signIn.value || (page === null && !comesBack)) return;
  isFinishing.set(true);
  try {
    if (comesBack) {
      // Whoever finishes a sign-in that this page has not begun is told so by the gateway.
      const body = { page: page ?? newSecret(), answer };
      await ask('hpcserve/v1/login/finish', { method: 'POST', body });
    }
    if (page !== null) await signInWith(sessionSecret(page));
  } catch (error) {
    // A gateway that is away for a moment ends no session.
    if (comesBack || error instanceof GatewayError) localStorage.removeItem(storageName);
    if (comesBack) signedOutBecause.set((error as Error).message);
  } finally {
    isFinishing.set(false);
  }
}

whenSignedOut((secret, isWanted) => {
  localStorage.removeItem(storageName);
  if (!isWanted) return;
  askJson<{ url: string | null }>('hpcserve/v1/login/end', { secret, method: 'POST', body: {} }).then(
    ({ url }) => {
      if (url !== null) location.assign(url);
    },
    // Without its secret, which is gone, the session is good for nothing.
    () => undefined,
  );
});

/** 32 bytes in base64url. */
function newSecret(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(secret_bytes));
  return btoa(String.fromCharCode(...bytes))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replaceAll('=', '');
}

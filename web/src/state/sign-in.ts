/** Who is signed in. Secrets stay in this tab (`sessionStorage`), and go nowhere but into the header of a request. */
import { ask, askJson, GatewayError, isSession } from '../api/client.ts';
import type { Caller } from '../api/rows.ts';
import { Store } from './store.ts';

export interface SignIn {
  /** What most is asked with: a key, the operator's token, or the secret of a session. */
  secret: string;
  role: Caller['role'];
  /** Whose usage and keys are shown, where a gateway shows users their own. */
  user?: string;
  /** The id of the key, where the gateway says it. */
  key_id?: string;
  /** Gateways that know users also know expiry, projects and budgets of device time. */
  knows_users: boolean;
  /** The key that chats are asked with: a token of the operator answers no prompts. */
  chat_key?: string;
}

const storageName = 'hpcserve.sign-in';

export const signIn = new Store<SignIn | undefined>(stored());
/** Said at the sign-in, where a session ended by itself. */
export const signedOutBecause = new Store<string | undefined>(undefined);

signIn.watch(() => {
  if (signIn.value) sessionStorage.setItem(storageName, JSON.stringify(signIn.value));
  else sessionStorage.removeItem(storageName);
});

function stored(): SignIn | undefined {
  try {
    const found = JSON.parse(sessionStorage.getItem(storageName) ?? 'null') as SignIn | null;
    return typeof found?.secret === 'string' ? found : undefined;
  } catch {
    // Another version's.
    return undefined;
  }
}

/**
 * Finds out what a secret is good for, and signs in with it.
 *
 * @throws GatewayError where it is neither a key nor the operator's token; UnreachableError
 */
export async function signInWith(secret: string): Promise<void> {
  const made = (await whoIs(secret)) ?? (await whoAsks(secret));
  signedOutBecause.set(undefined);
  signIn.set(made);
}

/** Of a gateway that says who asks; undefined where it does not know the question. */
async function whoIs(secret: string): Promise<SignIn | undefined> {
  let caller: Caller;
  try {
    caller = await askJson<Caller>('hpcserve/v1/me', { secret });
  } catch (error) {
    if (error instanceof GatewayError && error.status === 404) return undefined;
    throw error;
  }
  const made: SignIn = { secret, role: caller.role, knows_users: true };
  if (caller.user !== undefined) made.user = caller.user;
  if (caller.key) {
    made.key_id = caller.key.id;
    made.chat_key = secret;
  }
  return made;
}

/** Of one that shows keys and usage to its operator alone. */
async function whoAsks(secret: string): Promise<SignIn> {
  if (await isOperator(secret)) return { secret, role: 'operator', knows_users: false };
  await ask('v1/models', { secret });
  return { secret, role: 'user', knows_users: false, chat_key: secret };
}

async function isOperator(secret: string): Promise<boolean> {
  // Every key begins so, and is never the operator's token.
  if (secret.startsWith('hsk-')) return false;
  try {
    await ask('hpcserve/v1/keys', { secret });
    return true;
  } catch (error) {
    if (error instanceof GatewayError && (error.status === 401 || error.status === 403)) return false;
    throw error;
  }
}

/** Whether usage and keys are shown: those of all to the operator, else one's own. */
export function seesAccounts(signedIn: SignIn | undefined): boolean {
  return signedIn?.role === 'operator' || signedIn?.user !== undefined;
}

/** What else is to be done when somebody signs out, or is signed out. */
let onSignOut: ((secret: string, isWanted: boolean) => void) | undefined;

export function whenSignedOut(act: typeof onSignOut): void {
  onSignOut = act;
}

/** @param because absent where somebody wants it */
export function signOut(because?: string): void {
  const { secret } = signIn.value ?? {};
  signedOutBecause.set(because);
  signIn.set(undefined);
  if (secret !== undefined && isSession(secret)) onSignOut?.(secret, because === undefined);
}

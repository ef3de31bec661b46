/** Who is signed in. Secrets stay in this tab (`sessionStorage`), and go nowhere but into the header of a request. */
import { ask, GatewayError } from '../api/client.ts';
import { Store } from './store.ts';

export interface SignIn {
  /** What most is asked with: a key, or the operator's token. */
  secret: string;
  role: 'operator' | 'key';
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
  const operator = await isOperator(secret);
  if (!operator) await ask('v1/models', { secret });
  signedOutBecause.set(undefined);
  signIn.set(operator ? { secret, role: 'operator' } : { secret, role: 'key', chat_key: secret });
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

export function signOut(because?: string): void {
  signedOutBecause.set(because);
  signIn.set(undefined);
}

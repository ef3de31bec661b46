import type { IncomingMessage } from 'node:http';

/** 32 bytes in base64url. */
const idForm = /^[\w-]{43}$/;

/**
 * The cookie with a session's id. Cookies know hosts and no ports: on 127.0.0.1 each gateway that a person opens, and
 * whatever else listens there, is sent all of them. So its name holds which gateway it is for, it is good for nothing
 * without the secret of the page, and with TLS no other than this very host may set it (`__Host-`, RFC 6265bis).
 */
export class SessionCookie {
  readonly #name: string;

  /** @param gateway_id letters and digits */
  constructor(gateway_id: string) {
    this.#name = `hpcserve-${gateway_id}`;
  }

  /** The id of the session that a request shows, in the form that its way in has. */
  idOf({ headers: { cookie = '' } }: IncomingMessage): { id: string; secure: boolean } | undefined {
    for (const secure of [true, false]) {
      const begin = `${this.#named(secure)}=`;
      const pair = cookie.split(';').find((each) => each.trim().startsWith(begin));
      const id = pair?.trim().slice(begin.length);
      if (id !== undefined && idForm.test(id)) return { id, secure };
    }
    return undefined;
  }

  set(id: string, secure: boolean, age_s: number): string {
    return `${this.#named(secure)}=${id}; ${attributes(secure)}; Max-Age=${Math.floor(age_s)}`;
  }

  clear(secure: boolean): string {
    return `${this.#named(secure)}=; ${attributes(secure)}; Max-Age=0`;
  }

  #named(secure: boolean): string {
    return secure ? `__Host-${this.#name}` : this.#name;
  }
}

function attributes(secure: boolean): string {
  return `Path=/; HttpOnly; SameSite=Lax${secure ? '; Secure' : ''}`;
}

/**
 * A real OpenID Connect provider on loopback, with its development interactions: any password will do. It listens at
 * once, says where by IPC, and is a provider from when it is told its settings on; until then it answers 503.
 *
 * With `CERTIFICATE KEY`, two PEM files, it listens by TLS; with `CERTIFICATE KEY NAME` it says that it is at NAME,
 * where others have to bring requests to it.
 *
 * settings: { clients, accounts: { NAME: claims }, code_s?, clock_offset_s?, claims_in_id_token? }
 */
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createServer as createSecureServer } from 'node:https';
import Provider from 'oidc-provider';

const [certificate, key, name] = process.argv.slice(2);
const away = (_request, response) => response.writeHead(503).end();
const server = certificate
  ? createSecureServer({ cert: readFileSync(certificate), key: readFileSync(key) }, away)
  : createServer(away);
const issuer = () =>
  name ? `https://${name}` : `${certificate ? 'https' : 'http'}://127.0.0.1:${server.address().port}`;
server.listen(0, '127.0.0.1', () => process.send({ issuer: issuer(), port: server.address().port }));

process.on(
  'message',
  ({ clients, accounts, code_s = 60, clock_offset_s = 0, claims_in_id_token = false }) => {
    const trueNow = Date.now;
    Date.now = () => trueNow() + 1000 * clock_offset_s;
    const provider = new Provider(issuer(), {
      clients,
      cookies: { keys: ['of a test'] },
      claims: {
        openid: ['sub'],
        profile: ['preferred_username', 'groups', 'realm_access'],
        email: ['email', 'email_verified'],
      },
      conformIdTokenClaims: !claims_in_id_token,
      ttl: {
        AuthorizationCode: code_s,
        AccessToken: 600,
        IdToken: 600,
        Interaction: 600,
        Session: 600,
        Grant: 600,
      },
      findAccount: (_context, id) => ({ accountId: id, claims: () => ({ sub: id, ...accounts[id] }) }),
    });
    server.removeAllListeners('request');
    server.on('request', provider.callback());
    process.send({ ready: true });
  },
);
process.on('disconnect', () => process.exit());

import { useState } from 'preact/hooks';
import { GatewayError, isSession } from '../api/client.ts';
import type { KeyLimits, KeyRow, MadeKey } from '../api/rows.ts';
import { count, day, moment, number, plural, size } from '../format.ts';
import {
  Badge,
  Button,
  CopyButton,
  Dialog,
  Empty,
  Loading,
  PageHead,
  type Tone,
  Trouble,
  useNow,
} from '../parts/basics.tsx';
import { KeyForm, type KeyWishes } from '../parts/key-form.tsx';
import { OperatorOnly } from '../parts/operator-only.tsx';
import { request, usePoll } from '../state/poll.ts';
import { keyList } from '../state/questions.ts';
import { seesAccounts, signIn } from '../state/sign-in.ts';
import { useStore } from '../state/store.ts';

type Window =
  | { kind: 'create' }
  | { kind: 'made'; made: MadeKey; rotated: boolean }
  | { kind: 'change' | 'rotate' | 'block' | 'revoke'; key: KeyRow };

export function Keys() {
  if (!seesAccounts(useStore(signIn))) return <OperatorOnly title="Keys" command="hpcserve keys" />;
  return <AllKeys />;
}

function AllKeys() {
  const { data, error } = usePoll(keyList);
  const { role, user } = useStore(signIn) ?? {};
  const [opened, setOpened] = useState<Window>();
  const [past, setPast] = useState(false);
  const keys = data?.keys ?? [];
  const valid = keys.filter(({ revoked_at_ms }) => revoked_at_ms === undefined);
  const shown = (past ? keys : valid).toSorted((a, b) => b.created_at_ms - a.created_at_ms);
  return (
    <>
      <PageHead
        title="Keys"
        note={
          data &&
          `${plural(valid.length, 'key')}${role === 'operator' ? '' : ` of ${user}`}; valid at all gateways of the site`
        }
      >
        {keys.length > valid.length && (
          <Button pressed={past} onClick={() => setPast(!past)}>
            {past ? 'Hide' : 'Show'} {count(keys.length - valid.length)} revoked
          </Button>
        )}
        <Button kind="primary" icon="plus" onClick={() => setOpened({ kind: 'create' })}>
          New key
        </Button>
      </PageHead>
      {!data && !error && <Loading rows={4} what="Asking for the keys" />}
      {!data && error && <Trouble error={error} what="The keys cannot be shown." />}
      {data && shown.length === 0 && (
        <Empty title="There is no key yet.">
          <p>Whoever wants to ask a model needs one.</p>
        </Empty>
      )}
      {shown.length > 0 && <KeyTable keys={shown} open={setOpened} />}
      {opened && <KeyWindow opened={opened} open={setOpened} />}
    </>
  );
}

function KeyTable({ keys, open }: { keys: readonly KeyRow[]; open: (window: Window) => void }) {
  const now_ms = useNow();
  return (
    <div class="table-scroll" tabIndex={0} role="region" aria-label="Keys">
      <table>
        <thead>
          <tr>
            <th>Name</th>
            <th>State</th>
            <th>May ask for</th>
            <th>Limits</th>
            <th>Made</th>
            <th>
              <span class="visually-hidden">What can be done</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {keys.map((key) => {
            const state = stateOfKey(key, now_ms);
            return (
              <tr key={key.id} class={key.revoked_at_ms === undefined ? undefined : 'past'}>
                <td>
                  <b>{key.name}</b>
                  <span class="key-id">{key.id}</span>
                </td>
                <td>
                  <Badge tone={state.tone}>{state.words}</Badge>
                </td>
                <td class="wrap">{key.settings.models?.join(', ') ?? 'all models'}</td>
                <td class="wrap">{limitsOf(key) || <span class="quiet">none</span>}</td>
                <td title={moment(key.created_at_ms, now_ms)}>{day(key.created_at_ms)}</td>
                <td class="row-actions">
                  {key.revoked_at_ms === undefined && <KeyActions keyRow={key} open={open} />}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

type KeyAct = 'change' | 'rotate' | 'block' | 'revoke';

function KeyActions({ keyRow: key, open }: { keyRow: KeyRow; open: (window: Window) => void }) {
  const { role, knows_users } = useStore(signIn)!;
  const isOperator = role === 'operator';
  const isBlocked = key.blocked_at_ms !== undefined;
  const acts: [KeyAct, string][] = [['rotate', 'Rotate']];
  // What was made by another may only be narrowed by who made it.
  if (isOperator || key.parent_id !== undefined) acts.unshift(['change', 'Change']);
  if (knows_users && (isOperator || !isBlocked)) acts.push(['block', isBlocked ? 'Unblock' : 'Block']);
  acts.push(['revoke', 'Revoke']);
  return (
    <>
      {acts.map(([kind, words]) => (
        <Button kind="plain" key={kind} onClick={() => open({ kind, key })}>
          {words}
        </Button>
      ))}
    </>
  );
}

function stateOfKey(key: KeyRow, now_ms: number): { words: string; tone: Tone } {
  const { revoked_at_ms, blocked_at_ms } = key;
  const { expires_at_ms } = key.settings;
  if (revoked_at_ms !== undefined) return { words: `revoked ${day(revoked_at_ms)}`, tone: 'quiet' };
  if (blocked_at_ms !== undefined) return { words: 'blocked', tone: 'bad' };
  if (expires_at_ms === undefined) return { words: 'valid', tone: 'good' };
  if (expires_at_ms < now_ms) return { words: 'expired', tone: 'quiet' };
  return { words: `until ${day(expires_at_ms)}`, tone: 'good' };
}

function limitsOf({ settings, spent }: KeyRow): string {
  const { requests_per_minute, tokens_per_minute, concurrent_requests, body_bytes_max, budget } = settings;
  return [
    requests_per_minute !== undefined && `${count(requests_per_minute)} requests/min`,
    tokens_per_minute !== undefined && `${count(tokens_per_minute)} tokens/min`,
    concurrent_requests !== undefined && `${count(concurrent_requests)} at a time`,
    body_bytes_max !== undefined && `bodies to ${size(body_bytes_max)}`,
    budget && budgetOf(budget, spent),
    settings.project !== undefined && `project ${settings.project}`,
    settings.role !== undefined && settings.role !== 'user' && `role ${settings.role}`,
    settings.batch && 'batch',
    settings.qos,
    settings.cache_group !== undefined && `cache group ${settings.cache_group}`,
  ]
    .filter(Boolean)
    .join(', ');
}

type Budget = NonNullable<KeyLimits['budget']>;

function budgetOf({ tokens, device_s, window }: Budget, spent: KeyRow['spent']): string {
  const part = (most: number, unit: 'tokens' | 'device_s', write: (value: number) => string): string => {
    const used = spent?.[`${window}_${unit}`];
    return `${typeof used === 'number' ? `${write(used)} of ` : ''}${write(most)}`;
  };
  const hours = (value: number): string => number(value / 3600);
  const parts = [
    tokens !== undefined && `${part(tokens, 'tokens', count)} tokens`,
    device_s !== undefined && `${part(device_s, 'device_s', hours)} device hours`,
  ];
  return `${parts.filter(Boolean).join(' and ')} ${window === 'total' ? 'in all' : `a ${window}`}`;
}

/** What is done with a key, in a window each. */
function KeyWindow({ opened, open }: { opened: Window; open: (window: Window | undefined) => void }) {
  const close = (): void => open(undefined);
  const made = (key: MadeKey, rotated: boolean): void => {
    const own = signIn.value;
    // Who rotates the key that she is signed in with goes on with the new secret.
    if (rotated && own && own.key_id === key.id && !isSession(own.secret))
      signIn.set({ ...own, secret: key.key, chat_key: key.key });
    keyList.refresh();
    open({ kind: 'made', made: key, rotated });
  };
  const changed = (): void => {
    keyList.refresh();
    close();
  };
  switch (opened.kind) {
    case 'create':
      return (
        <Dialog title="New key" onClose={close}>
          <KeyForm
            submit="Make the key"
            onSubmit={async ({ name, settings }) =>
              made(
                await request<MadeKey>('hpcserve/v1/keys', { method: 'POST', body: { name, settings } }),
                false,
              )
            }
          />
        </Dialog>
      );
    case 'made':
      return (
        <Dialog
          key="made"
          title={opened.rotated ? 'The key’s new secret' : `The key of ${opened.made.name}`}
          onClose={close}
        >
          <ShownOnce made={opened.made} onDone={close} />
        </Dialog>
      );
    case 'change':
      return (
        <Dialog title={`Change ${opened.key.name}`} onClose={close}>
          <KeyForm
            submit="Change the key"
            known={opened.key}
            onSubmit={(wishes) => change(opened.key, wishes).then(changed)}
          />
        </Dialog>
      );
    case 'rotate':
      return <Rotate id={opened.key.id} name={opened.key.name} onClose={close} onMade={made} />;
    case 'block':
      return <Block keyRow={opened.key} onClose={close} onDone={changed} />;
    case 'revoke':
      return <Revoke id={opened.key.id} name={opened.key.name} onClose={close} onDone={changed} />;
  }
}

interface KeyNamed {
  id: string;
  name: string;
  onClose: () => void;
}

function Rotate({
  id,
  name,
  onClose,
  onMade,
}: KeyNamed & { onMade: (key: MadeKey, rotated: boolean) => void }) {
  return (
    <Confirm
      title={`Rotate ${name}?`}
      words="It gets a new secret and keeps its name, limits and what it used. The old secret ends."
      button="Rotate"
      onClose={onClose}
      act={async () =>
        onMade(await request<MadeKey>(`hpcserve/v1/keys/${id}/rotate`, { method: 'POST', body: {} }), true)
      }
    />
  );
}

function Block({ keyRow, onClose, onDone }: { keyRow: KeyRow; onClose: () => void; onDone: () => void }) {
  const { id, name, blocked_at_ms } = keyRow;
  const action = blocked_at_ms === undefined ? 'block' : 'unblock';
  return (
    <Confirm
      title={action === 'block' ? `Block ${name}?` : `Let ${name} in again?`}
      words={
        action === 'block'
          ? 'It is refused, and so are keys that were made with it, until the operator lets it in again.'
          : 'It is valid again, with the same secret.'
      }
      button={action === 'block' ? 'Block' : 'Unblock'}
      onClose={onClose}
      act={async () => {
        await request(`hpcserve/v1/keys/${id}/${action}`, { method: 'POST', body: {} });
        onDone();
      }}
    />
  );
}

function Revoke({ id, name, onClose, onDone }: KeyNamed & { onDone: () => void }) {
  return (
    <Confirm
      title={`Revoke ${name}?`}
      words="Whoever uses it is refused from now on, at all gateways within seconds. It cannot be brought back; its usage stays in the ledger."
      button="Revoke"
      onClose={onClose}
      act={async () => {
        await request(`hpcserve/v1/keys/${id}`, { method: 'DELETE' });
        onDone();
      }}
    />
  );
}

async function change({ id, settings }: KeyRow, wishes: KeyWishes): Promise<void> {
  // What the form shows and has no value is taken away; what it does not show stays.
  const body: Record<string, unknown> = {};
  for (const field of wishes.fields) {
    const value = wishes.settings[field];
    if (JSON.stringify(value) !== JSON.stringify(settings[field])) body[field] = value ?? null;
  }
  if (Object.keys(body).length > 0) await request(`hpcserve/v1/keys/${id}`, { method: 'PATCH', body });
}

function ShownOnce({ made, onDone }: { made: MadeKey; onDone: () => void }) {
  const signedIn = useStore(signIn);
  return (
    <div class="shown-once">
      <p>It is shown this once and kept nowhere: copy it now.</p>
      <p class="secret">
        <code>{made.key}</code>
        <CopyButton text={made.key} label="Copy the key" />
      </p>
      <div class="dialog-foot">
        {signedIn?.role === 'operator' && (
          <Button
            onClick={() => {
              signIn.set({ ...signedIn, chat_key: made.key });
              onDone();
            }}
          >
            Use it for the chat here
          </Button>
        )}
        <Button kind="primary" onClick={onDone}>
          Done
        </Button>
      </div>
    </div>
  );
}

interface ConfirmProps {
  title: string;
  words: string;
  button: string;
  onClose: () => void;
  act: () => Promise<void>;
}

function Confirm({ title, words, button, onClose, act }: ConfirmProps) {
  const [busy, setBusy] = useState(false);
  const [trouble, setTrouble] = useState<string>();
  const confirm = (): void => {
    setBusy(true);
    act().catch((error: Error) => {
      setBusy(false);
      const unknown = error instanceof GatewayError && (error.status === 404 || error.status === 405);
      setTrouble(unknown ? `Not available at this gateway: ${error.message}` : error.message);
    });
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <p>{words}</p>
      <p class="form-trouble" role="alert">
        {trouble}
      </p>
      <div class="dialog-foot">
        <Button onClick={onClose}>Leave it</Button>
        <Button kind="danger" disabled={busy} onClick={confirm}>
          {button}
        </Button>
      </div>
    </Dialog>
  );
}

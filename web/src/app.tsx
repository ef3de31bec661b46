import { useEffect, useState } from 'preact/hooks';
import { isSession } from './api/client.ts';
import { Chat } from './pages/chat.tsx';
import { Jobs } from './pages/jobs.tsx';
import { Keys } from './pages/keys.tsx';
import { Live } from './pages/live.tsx';
import { Models } from './pages/models.tsx';
import { SignInPage, SigningIn } from './pages/sign-in.tsx';
import { Usage } from './pages/usage.tsx';
import { Banner } from './parts/banner.tsx';
import { Button, Dialog } from './parts/basics.tsx';
import { Icon } from './parts/icon.tsx';
import { Mark } from './parts/mark.tsx';
import { Shortcuts, useShortcuts } from './parts/shortcuts.tsx';
import { isFinishing } from './state/login.ts';
import { record } from './state/record.ts';
import { linkTo, type PageName, pages, route } from './state/route.ts';
import { type SignIn, signIn, signOut } from './state/sign-in.ts';
import { useStore } from './state/store.ts';
import { type Theme, theme, themes } from './state/theme.ts';

const contents: Readonly<Record<PageName, () => preact.JSX.Element>> = {
  models: Models,
  jobs: Jobs,
  live: Live,
  usage: Usage,
  keys: Keys,
  chat: Chat,
};

export function App() {
  const signedIn = useStore(signIn);
  const finishing = useStore(isFinishing);
  if (finishing) return <SigningIn />;
  return signedIn ? <Shell /> : <SignInPage />;
}

function Shell() {
  const { page } = useStore(route);
  const [help, setHelp] = useState(false);
  useShortcuts(() => setHelp(true));
  useEffect(record, []);
  const title = pages.find(({ name }) => name === page)!.title;
  useEffect(() => {
    document.title = `${title} · hpcserve`;
    document.querySelector<HTMLElement>('main')?.scrollTo(0, 0);
  }, [title]);
  const Content = contents[page];
  return (
    <div class={`shell on-${page}`}>
      <button type="button" class="skip button primary" onClick={toMain}>
        Skip to the page
      </button>
      <aside>
        <p class="brand">
          <Mark /> hpcserve
        </p>
        <nav aria-label="Pages">
          {pages.map(({ name, title: words, key }) => (
            <a
              href={linkTo(name)}
              key={name}
              aria-current={name === page ? 'page' : undefined}
              title={`${words} (g ${key})`}
            >
              <Icon name={name} />
              <span>{words}</span>
            </a>
          ))}
        </nav>
        <Foot onHelp={() => setHelp(true)} />
      </aside>
      <main id="main" tabIndex={-1}>
        <Banner />
        <Content key={page} />
      </main>
      {help && (
        <Dialog title="Keyboard" onClose={() => setHelp(false)}>
          <Shortcuts />
        </Dialog>
      )}
    </div>
  );
}

/** The address names the page, so that a link into it would leave it. */
function toMain(): void {
  document.getElementById('main')?.focus();
}

function Foot({ onHelp }: { onHelp: () => void }) {
  const signedIn = useStore(signIn);
  const chosen = useStore(theme);
  const next: Theme = themes[(themes.indexOf(chosen) + 1) % themes.length]!;
  const icon = { system: 'system', light: 'sun', dark: 'moon' } as const;
  return (
    <div class="foot">
      <p class="who">{who(signedIn)}</p>
      <div class="foot-buttons">
        <Button
          icon={icon[chosen]}
          kind="plain"
          label={`Theme: ${chosen}. Change to ${next}`}
          onClick={() => theme.set(next)}
        />
        <Button icon="help" kind="plain" label="Keyboard (?)" onClick={onHelp} />
        <Button icon="leave" kind="plain" label="Sign out" onClick={() => signOut()} />
      </div>
    </div>
  );
}

function who(signedIn: SignIn | undefined): string {
  if (signedIn && isSession(signedIn.secret)) return `${signedIn.user} (${signedIn.role})`;
  if (signedIn?.role === 'operator') return 'Operator';
  return signedIn?.user ?? `Key ${signedIn?.secret.slice(0, 8)}…`;
}

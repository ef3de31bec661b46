import { signOut } from '../state/sign-in.ts';
import { Button, Empty, PageHead } from './basics.tsx';

/** Instead of a page that a key does not open. */
export function OperatorOnly({ title, command }: { title: string; command: string }) {
  return (
    <>
      <PageHead title={title} />
      <Empty title="This page is for the operator of the gateway.">
        <p>
          Sign in with the token in <code>admin.token</code> of the gateway’s folder, or type{' '}
          <code>{command}</code> where the gateway’s files can be read.
        </p>
        <Button onClick={() => signOut()}>Sign in as the operator</Button>
      </Empty>
    </>
  );
}

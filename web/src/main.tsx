import { render } from 'preact';
import { App } from './app.tsx';
import { resume } from './state/login.ts';
import './style/base.css';
import './style/shell.css';
import './style/parts.css';
import './style/pages.css';
import './style/chat.css';

void resume();
render(<App />, document.getElementById('app')!);

import './base.css';
import './form.css';
import './logs.css';
